#pragma once

#include <cstdint>

#include <torch/torch.h>

// A model with the same weights everywhere, what each rank feeds it, and its loss.

namespace muster::missing_loss {

using torch::Tensor;

struct SmallImpl : torch::nn::Module {
  explicit SmallImpl(int64_t inputs = 4, int64_t outputs = 3)
      : a(register_module("a", torch::nn::Linear(inputs, 9))), b(register_module("b", torch::nn::Linear(9, outputs))) {
    const torch::NoGradGuard no_grad;
    int i = 0;
    for (auto& parameter : parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel(), torch::kFloat) * 1.3 + i++).view_as(parameter) * 0.5);
  }
  Tensor forward(const Tensor& x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a, b;
};
TORCH_MODULE(Small);

inline Tensor inputs(int step, int rank) {
  return torch::cos(torch::arange(12, torch::kFloat) * 0.7 + step + 3 * rank).view({3, 4});
}
inline Tensor loss_of(const Tensor& y) { return y.pow(2).mean() + y.sum() * 0.1; }

}  // namespace muster::missing_loss
