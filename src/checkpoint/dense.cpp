#include "checkpoint/dense.h"

namespace muster::checkpoint {

at::Tensor dense(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (values.scalar_type() == at::ScalarType::Float4_e2m1fn_x2) values = values.view(at::kByte);
  return values.cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace muster::checkpoint
