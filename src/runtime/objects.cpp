#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/detail/values.h"

namespace muster::runtime {
namespace {

/// The group for messages that carry values as bytes.
comm::Communicator for_objects(const comm::Communicator& group) {
  auto label = group.label();
  if (label.text.empty()) label.text = "objects";
  return group.with_label(std::move(label));
}

}  // namespace

bool is_alone(const comm::Communicator& group) { return group.size() == 1; }
bool is_rank(const comm::Communicator& group, int rank) { return group.rank() == rank; }

std::vector<at::Tensor> gather_packed(const comm::Communicator& group, const at::Tensor& packed) {
  comm::require_same_device_operations(group);  // the packed values may come from device operations
  return for_objects(group).all_gatherv(packed);
}

at::Tensor broadcast_packed(const comm::Communicator& group, const at::Tensor& packed, int source) {
  const bool here = group.rank() == source;
  auto label = for_objects(group).label();
  label.tensor_count = 2;  // the size, then the bytes
  const auto size = at::scalar_tensor(here ? packed.numel() : 0, at::kLong);
  group.with_label(label).broadcast(size, source);
  if (size.item<int64_t>() < 0)
    throw CommError("MU050", formatted("rank {} announced an object of {} bytes: do all ranks run the same build?",
                                       source, size.item<int64_t>()));
  const auto bytes = here ? packed : at::empty({size.item<int64_t>()}, at::kByte);
  label.tensor_index = 1;
  group.with_label(label).broadcast(bytes, source);
  return bytes;
}

}  // namespace muster::runtime
