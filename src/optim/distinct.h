#pragma once  // for other rooms

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

// LibTorch's parameters() lists a weight that two modules share twice. Code that counts or changes gradients must take
// it once.
// Why: docs/decisions/0073-tied-parameters-count-once.md.

namespace muster::optim {

/// These tensors without repetitions, in order.
std::vector<at::Tensor> distinct_tensors(const std::vector<at::Tensor>& tensors);

/// Removes repeated tensors from the optimizer's groups; returns the number of removed entries. A group may be left
/// empty.
int64_t remove_repeated(torch::optim::Optimizer& optimizer);

}  // namespace muster::optim
