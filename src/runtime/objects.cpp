#include "muster/runtime/objects.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

namespace muster::runtime {

at::Tensor broadcast_packed(const dist::Communicator& group, const at::Tensor& packed, int source) {
  const bool here = group.rank() == source;
  const auto size = at::scalar_tensor(here ? packed.numel() : 0, at::kLong);
  group.broadcast(size, source);
  const auto bytes = here ? packed : at::empty({size.item<int64_t>()}, at::kByte);
  group.broadcast(bytes, source);
  return bytes;
}

}  // namespace muster::runtime
