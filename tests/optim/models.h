#pragma once

#include <vector>

#include <torch/torch.h>

namespace muster::optim::testing {

/// Parameters of sizes with and without a scalar tail, some smaller than a vector, one of size zero, one channels_last.
inline std::vector<at::Tensor> odd_parameters(at::ScalarType dtype, uint64_t seed = 1) {
  torch::manual_seed(seed);
  const auto options = torch::TensorOptions().dtype(dtype);
  std::vector<at::Tensor> all{
      torch::randn({64, 8}, options),   torch::randn({1003}, options),
      torch::randn({10}, options),      torch::randn({0}, options),
      torch::randn({}, options),        torch::randn({6, 5, 3, 3}, options).contiguous(at::MemoryFormat::ChannelsLast),
      torch::randn({7, 9}, options).t()};
  for (auto& parameter : all) parameter.requires_grad_();
  return all;
}

inline std::vector<at::Tensor> copies(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : parameters)
    all.push_back(parameter.detach().clone(at::MemoryFormat::Preserve).requires_grad_());
  return all;
}

inline void set_gradients(const std::vector<at::Tensor>& parameters, uint64_t seed) {
  torch::manual_seed(seed);
  for (auto parameter : parameters) parameter.mutable_grad() = torch::randn_like(parameter.detach());
}

inline double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() == 0) continue;
    const auto difference = (a[i].detach().to(at::kDouble) - b[i].detach().to(at::kDouble)).abs().max().item<double>();
    if (!(difference <= largest)) largest = difference;  // keeps a NaN
  }
  return largest;
}

}  // namespace muster::optim::testing
