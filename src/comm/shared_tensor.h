#pragma once  // for other rooms

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// What a rank may do with the memory that another rank of its host allocated for all of them.
enum class PeerAccess : uint8_t {
  read,
  read_contiguous,  ///< read; the parts of all ranks appear one after another, in rank order
  write,            ///< write results of reductions; after a CommError the contents are undefined, and may still change
};

/// A 1-D tensor of zeros in memory that all ranks of the group can read. Its contents, whole or in part, are reduced
/// and gathered without a copy first; if peers may write, all_reduce() puts the results into it directly. Its storage
/// cannot be resized, and the memory stays as long as a tensor uses it. Undefined on every rank if the ranks share no
/// memory, or if one of them has none left. Requires: equal arguments on every rank. Throws: CommError. Collective.
/// Why: docs/decisions/0110-gradients-in-memory-that-ranks-share.md.
at::Tensor try_shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                            PeerAccess access = PeerAccess::read);
/// Returns try_shared_zeros(), or an ordinary tensor on every rank if that is undefined.
at::Tensor shared_zeros(const Communicator& group, int64_t elements, const at::TensorOptions& options,
                        PeerAccess access = PeerAccess::read);

/// One tensor that all ranks of a group share. Each rank writes one part of it.
struct SharedTensor {
  at::Tensor whole = {};  ///< the parts of all ranks, in rank order; if ranks are processes, writing to it faults
  at::Tensor own = {};    ///< the part that this rank writes
};
/// Parts of a SharedTensor of this group must be multiples of this many bytes. 0: the ranks are not all on one host, or
/// share no memory.
std::size_t part_alignment(const Communicator& group);
/// Zeros, `elements` for each rank, in memory like that of try_shared_zeros(); the tensors are undefined if that one
/// is. Nothing keeps a rank from reading what another one is writing: use barriers. Requires: a multiple of
/// part_alignment(), if it is not 0. Throws: CommError. Collective.
SharedTensor try_shared_tensor(const Communicator& group, int64_t elements, const at::TensorOptions& options);

/// Memory of a group for tensors. It has one part per rank, which that rank allocated.
struct SharedBuffer {
  uint64_t number = 0;              ///< number of the buffer, equal on all ranks
  std::size_t bytes = 0;            ///< size of each part
  PeerAccess access{};              ///< how a rank may access the parts of others
  std::vector<std::byte*> parts{};  ///< address of each part, by rank
  std::byte* row = nullptr;         ///< PeerAccess::read_contiguous: address of all parts in a row, for reading only
  std::shared_ptr<void> keeps{};    ///< owner of the memory
};

/// The buffers of a group that tensors still use, from the point of view of one rank.
class LiveBuffers {
 public:
  explicit LiveBuffers(int rank) : rank_(static_cast<std::size_t>(rank)) {}

  void add(const std::shared_ptr<SharedBuffer>& buffer) {
    std::erase_if(buffers_, [](const auto& known) { return known.expired(); });
    buffers_.push_back(buffer);
  }
  /// The buffer that contains all of the rank's tensor; null if there is none.
  std::shared_ptr<SharedBuffer> of(const at::Tensor& tensor) const;

 private:
  const std::size_t rank_;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
};

}  // namespace muster::comm
