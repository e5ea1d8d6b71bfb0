#pragma once

// The models of the step and trainer benchmarks, 64-128-128-10 and 64-10, and their batches of 32, as in peers/mlp.py.

#include <vector>

#include <torch/torch.h>

namespace bench {

using Batch = torch::data::Example<>;

inline torch::nn::Sequential make_mlp() {
  torch::manual_seed(0);
  torch::nn::Sequential net;  // one by one, so that parameters are drawn in Python's order
  net->push_back(torch::nn::Linear(64, 128));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(128, 128));
  net->push_back(torch::nn::ReLU());
  net->push_back(torch::nn::Linear(128, 10));
  return net;
}

/// A step so short that what a Trainer adds to it stands above the noise.
inline torch::nn::Sequential make_one_layer() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(64, 10));
}

inline std::vector<Batch> make_batches(int count) {
  torch::manual_seed(1);
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) {
    auto x = torch::randn({32, 64});
    batches.emplace_back(x, torch::randint(0, 10, {32}, torch::kLong));
  }
  return batches;
}

}  // namespace bench
