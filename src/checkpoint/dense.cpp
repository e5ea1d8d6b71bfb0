#include "checkpoint/dense.h"

namespace muster::checkpoint {

at::Tensor as_bytes_if_packed(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::ScalarType::Float4_e2m1fn_x2 ? tensor.view(at::kByte) : tensor;
}

at::Tensor dense(const at::Tensor& tensor) {
  return as_bytes_if_packed(tensor.detach()).cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace muster::checkpoint
