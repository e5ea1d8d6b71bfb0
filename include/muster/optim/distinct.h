#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

// A weight that two modules share is listed twice by LibTorch's parameters(). What counts or changes gradients takes it once.

namespace muster::optim {

/// Each of these tensors once, in order.
std::vector<at::Tensor> distinct_tensors(const std::vector<at::Tensor>& tensors);

/// Removes from the optimizer's groups what came before in them; returns how many entries that were. A group may be left empty.
int64_t remove_repeated(torch::optim::Optimizer& optimizer);

}  // namespace muster::optim
