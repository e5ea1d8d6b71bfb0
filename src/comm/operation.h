#pragma once  // for other rooms

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "comm/shared_tensor.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// Whether operations of a Communicator take tensors of this dtype.
bool takes_dtype(c10::ScalarType dtype);

enum class OperationKind : uint8_t {
  all_reduce,
  all_gather,
  all_gatherv,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  broadcast_bytes,
  all_gather_bytes,
  gather_bytes,
  subgroup,
  allocate_shared_buffer,
  send,
  recv,
};

class Staging;

/// The location of a tensor in the memory that ranks share.
struct SharedMemoryLocation {
  uint64_t buffer = 0;  ///< number of the shared buffer; 0: the tensor is in memory of this rank alone
  uint64_t offset = 0;
};

/// One operation as a rank asked for it. Tensors are contiguous, and either all in host memory or all on one device.
struct Operation {
  OperationKind kind = OperationKind::barrier;
  OperationLabel label{};
  ReduceOp reduce = ReduceOp::sum;
  int root = -1;                      ///< the root rank, or the peer of send and recv; -1 if neither
  at::Tensor in{};                    ///< this rank's contribution; not for all_reduce, broadcast, reduce, recv
  at::Tensor out{};                   ///< the tensor that is filled; not for send and all_gatherv and gather
  std::vector<at::Tensor> parts{};    ///< scatter, all_to_all: the tensor for each rank
  std::vector<int64_t> list{};        ///< subgroup: its ranks; allocate_shared_buffer: the size in bytes
  std::vector<at::Tensor> results{};  ///< all_gatherv and gather: the tensor from each rank
  int64_t sequence = 0;               ///< number of the operation; set by the group
  uint64_t piggyback = 0;             ///< this rank's piggyback value, set by the group; see piggyback.h
  PeerAccess peer_access{};           ///< access that allocate_shared_buffer asks for
  SharedMemoryLocation location{};    ///< location of `out`; set by collectives that share memory
  std::shared_ptr<SharedBuffer>
      shared_buffer{};                 ///< the result of allocate_shared_buffer; null if a rank cannot have it
  std::shared_ptr<Staging> staging{};  ///< copies of device tensors, if the operation runs in host memory
  std::vector<uint64_t> piggybacks{};  ///< values received from the ranks, if this rank sent one
};

/// The name of the operation: "all_reduce", "broadcast", ...
std::string_view name_of(OperationKind kind);
std::string_view name_of(ReduceOp op);
/// The name of the dtype: "float32", "bfloat16", ...
std::string name_of(at::ScalarType dtype);
bool reduces(OperationKind kind);
bool has_root(OperationKind kind);
bool is_point_to_point(OperationKind kind);
/// Whether the operation has no tensor, and ranks must name equal lists instead.
bool has_list(OperationKind kind);
/// Whether all ranks must name equal shapes.
bool has_one_shape(OperationKind kind);

/// The tensor whose dtype and shape describe the operation on this rank; undefined if there is none.
const at::Tensor& described_tensor(const Operation& operation);
/// The list of an operation that has one, else the shape of `tensor`; empty if that is undefined.
at::IntArrayRef described_shape(const Operation& operation, const at::Tensor& tensor);
int64_t payload_bytes(const Operation& operation);

/// A text such as "all_reduce(sum) of float32 [4, 3]".
std::string describe(OperationKind kind, ReduceOp reduce, int root, at::ScalarType dtype, at::IntArrayRef shape);
/// A text such as "the library's all_reduce(sum) of float32 [4, 3] for gradients of bucket 2 in gradient step 7".
std::string describe(const std::string& what, const OperationLabel& label);
std::string describe(const Operation& operation);

}  // namespace muster::comm
