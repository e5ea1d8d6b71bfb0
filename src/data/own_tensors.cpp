#include "own_tensors.h"

namespace muster::data {

bool is_ours_alone(const at::Tensor& t) {
  return t.use_count() == 1 && t.weak_use_count() <= 1 && t.has_storage() && t.storage().use_count() == 1 &&
         t.storage().resizable() && !t.requires_grad() && !t.is_inference() && t.is_cpu();
}

void drop_shared_tensors(BatchBox& box) {
  box.visit([](at::Tensor& t) {
    if (t.defined() && !is_ours_alone(t)) t.reset();
  });
}

}  // namespace muster::data
