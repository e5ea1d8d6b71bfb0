#pragma once  // for other rooms

#include <cstdint>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/options.h"

namespace muster::optim {

// LibTorch's parameters() lists a weight that two modules share twice. Code that counts or changes gradients must take
// it once.
// A tensor's impl is its identity: all handles of a parameter share it. Memory is not, because a sharded parameter may
// have none.
// Why: docs/decisions/0073-tied-parameters-count-once.md.

/// These tensors without repetitions, in order.
inline std::vector<at::Tensor> distinct_tensors(const std::vector<at::Tensor>& tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<at::Tensor> distinct;
  distinct.reserve(tensors.size());
  for (const auto& tensor : tensors)
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) distinct.push_back(tensor);
  return distinct;
}

/// The gradients of those parameters that have one. Requires: no parameter is repeated.
inline std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  return gradients;
}

/// Removes repeated tensors from the optimizer's groups; returns the number of removed entries. A group may be left
/// empty.
inline int64_t remove_repeated(torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> seen;
  int64_t removed = 0;
  for (auto& group : optimizer.param_groups())
    removed += static_cast<int64_t>(std::erase_if(
        group.params(), [&](const at::Tensor& one) { return !seen.insert(one.unsafeGetTensorImpl()).second; }));
  return removed;
}

/// Expands an option to one value per group. Throws: ConfigError (MU135) unless there is one value or `groups` values.
template <class T>
std::vector<T> each_group(const PerGroup<T>& given, size_t groups, std::string_view option) {
  const auto& values = given.values();
  if (values.size() != 1 && values.size() != groups)
    throw ConfigError("MU135", formatted("option {} has {} values; give one, or one for each of the optimizer's {} "
                                         "parameter groups",
                                         option, values.size(), groups));
  return values.size() == groups ? values : std::vector<T>(groups, values.front());
}

}  // namespace muster::optim
