#include "optim/distinct.h"

#include <unordered_set>

namespace muster::optim {

// A tensor's impl is its identity: all handles of a parameter share it. Memory is not, because a sharded parameter may
// have none.
std::vector<at::Tensor> distinct_tensors(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<at::Tensor> distinct;
  distinct.reserve(tensors.size());
  for (const auto& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) distinct.push_back(tensor);
  return distinct;
}

int64_t remove_repeated(torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t removed = 0;
  for (auto& group : optimizer.param_groups())
    removed += static_cast<int64_t>(std::erase_if(
        group.params(), [&](const at::Tensor& one) { return !seen.insert(one.unsafeGetTensorImpl()).second; }));
  return removed;
}

}  // namespace muster::optim
