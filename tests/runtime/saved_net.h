#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/torch.h>

// The model and the data that the tests of saving save, and the comparison of their weights.

namespace muster::saving {

struct SavedNetImpl : torch::nn::Module {
  explicit SavedNetImpl(int64_t width = 5)
      : a(register_module("a", torch::nn::Linear(3, width))), b(register_module("b", torch::nn::Linear(width, 1))) {}
  torch::nn::Linear a, b;
  at::Tensor forward(at::Tensor x) { return b(torch::tanh(a(x))); }
};
TORCH_MODULE(SavedNet);

struct Numbers {
  int64_t get(int64_t i) const { return i; }
  int64_t size() const { return 24; }
};

inline bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return a.size() == b.size();
}

}  // namespace muster::saving
