#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "muster/optim/averaging.h"

namespace muster::optim::testing {

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    linear = register_module("linear", torch::nn::Linear(5, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    for (auto tensor : parameters()) tensor.set_data(tensor.to(torch::kDouble));
    for (auto tensor : buffers())  // not to(): it would make a double of the count too
      if (tensor.is_floating_point()) tensor.set_data(tensor.to(torch::kDouble));
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Normed);

/// Values of parameters and buffers, by name, after step n; averaging_parity.py sets the same.
inline void set_values(torch::nn::Module& module, int n) {
  torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& entry : module.named_parameters()) tensors[entry.key()] = entry.value();
  for (const auto& entry : module.named_buffers()) tensors[entry.key()] = entry.value();
  int64_t k = 0;
  for (auto& [name, tensor] : tensors) {
    const auto index = torch::arange(tensor.numel(), torch::kDouble).view(tensor.sizes());
    if (tensor.is_floating_point()) tensor.copy_(torch::sin(index * 0.7 + (0.3 * n + static_cast<double>(k))));
    else tensor.fill_(3 * n + 1);
    ++k;
  }
}

inline std::vector<std::pair<std::string, AveragingOptions>> averaging_cases() {
  return {{"swa", {.kind = AveragingKind::swa}},
          {"ema", {.decay = 0.9}},
          {"swa buffers", {.kind = AveragingKind::swa, .use_buffers = true}},
          {"ema buffers", {.decay = 0.99, .use_buffers = true}}};
}

inline constexpr int kAveragingSteps = 25;

}  // namespace muster::optim::testing
