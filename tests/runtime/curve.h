#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/parallel/managed_model.h"
#include "muster/testing/compare.h"
#include "runtime/prepared_model.h"

/// A small net and its data: trained in micro-batches, and in the big batches that these make.
namespace muster::curve {

struct CurveImpl : torch::nn::Module {
  CurveImpl() { to(torch::kDouble); }
  torch::Tensor forward(torch::Tensor x) { return b(torch::tanh(a(x))); }
  torch::nn::Linear a{register_module("a", torch::nn::Linear(4, 6))}, b{register_module("b", torch::nn::Linear(6, 1))};
};
TORCH_MODULE(Curve);

using Points = std::vector<std::tuple<torch::Tensor, torch::Tensor>>;

inline Points points(int64_t count) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  Points result;
  for (int64_t i = 0; i < count; ++i) {
    auto x = torch::randn({4}, generator, torch::kDouble);
    result.emplace_back(x, x.sum().sin().view({1}));
  }
  return result;
}

inline Curve seeded_curve() {
  torch::manual_seed(4);
  return Curve();
}

/// Parameters after plain steps, each over the samples of one window in one big batch.
inline std::vector<torch::Tensor> big_batches(const Points& data, int64_t window, int epochs) {
  auto net = seeded_curve();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto count = static_cast<int64_t>(data.size());
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (int64_t begin = 0; begin < count; begin += window) {
      std::vector<torch::Tensor> x, y;
      for (int64_t i = begin; i < std::min(count, begin + window); ++i) {
        x.push_back(std::get<0>(data[i]));
        y.push_back(std::get<1>(data[i]));
      }
      sgd.zero_grad();
      torch::mse_loss(net(torch::stack(x)), torch::stack(y)).backward();
      sgd.step();
    }
  return net->parameters();
}

struct Setting {
  AcceleratorOptions accelerator;
  int64_t batch_size = 4;
  int epochs = 2;
};

/// Parameters after the loop of the README, with micro-batches.
inline std::vector<torch::Tensor> micro_batches(const Points& data, const Setting& setting) {
  Accelerator accelerator(setting.accelerator);
  auto net = seeded_curve();
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
                          DataLoader(data, {.batch_size = setting.batch_size}));
  for (int epoch = 0; epoch < setting.epochs; ++epoch)
    for (auto& [x, y] : batches) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
  std::vector<torch::Tensor> result;
  for (auto& [name, value] : model.prepared()->managed->full_state(false)) result.push_back(value.detach().clone());
  return result;
}

inline void expect_equal(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(testing::difference(actual[i], expected[i].detach(), 0, 1e-12), "") << i;
}

}  // namespace muster::curve
