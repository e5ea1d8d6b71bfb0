#include <ATen/ops/to.h>

#include "muster/tree/detail/visit.h"

namespace muster::tree {

at::Tensor moved(const at::Tensor& tensor, at::Device device, bool non_blocking) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(device, tensor.scalar_type(), non_blocking);
}

}  // namespace muster::tree
