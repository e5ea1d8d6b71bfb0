#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "on_device/test_device.h"
#include "runtime/prepared_model.h"
#include "runtime/ranks.h"

namespace muster::testing {

/// A frozen parameter and a buffer, and by default sizes that are no multiples of anything.
struct CourseNetImpl : torch::nn::Module {
  torch::nn::Linear in, middle, out;
  torch::nn::LayerNorm norm;
  at::Tensor scale = register_buffer("scale", torch::full({1}, 1.25));
  explicit CourseNetImpl(int64_t width)
      : in(7, width), middle(width, width), out(width, 3), norm(torch::nn::LayerNormOptions({width})) {
    register_module("inner", in);
    register_module("middle", middle);
    register_module("out", out);
    register_module("norm", norm);
    out->bias.requires_grad_(false);
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(middle(torch::tanh(in(x))).relu()) * scale); }
};
TORCH_MODULE(CourseNet);

using Weights = std::vector<std::pair<std::string, at::Tensor>>;

struct Course {
  bool backend = false;  ///< collectives of the device, instead of staged ones
  Strategy strategy = "ddp";
  std::string optimizer = "sgd";
  std::string precision = "no";
  bool clips = false;
  bool recompute = false;  ///< of all layers but the last, on the device
  int steps = 4;
  int64_t width = 19;
};

inline at::Tensor inputs(int step, int rank) {
  return torch::cos(torch::arange(28, torch::kFloat) * (step + 2) + 5 * rank).view({4, 7});
}

template <class Optimizer>
Weights train_with(Accelerator& accelerator, const Course& course, const CourseNet& net, Optimizer optimizer) {
  auto [model, prepared] = accelerator.prepare(net, std::move(optimizer));
  for (int step = 0; step < course.steps; ++step) {
    const auto answer = model(inputs(step, accelerator.process_index()).to(accelerator.device())).to(at::kFloat);
    accelerator.backward(answer.pow(2).mean() + answer.sum() * 0.01);
    if (course.clips) accelerator.clip_grad_norm_(model, 0.5);
    prepared.step();
    prepared.zero_grad();
  }
  Weights weights = model.prepared()->managed->full_state(false);
  for (auto& [name, value] : weights) value = value.cpu();
  return weights;
}

inline Weights train(const Course& course, bool on_cpu) {
  torch::manual_seed(3);
  Accelerator accelerator({.cpu = on_cpu,
                           .device_backend = course.backend ? collectives_of_device() : nullptr,
                           .mixed_precision = Precision::parse(course.precision),
                           .recompute = course.recompute && !on_cpu ? RecomputeOptions{.blocks = {"inner|middle|norm"}}
                                                                    : RecomputeOptions(),
                           .strategy = course.strategy});
  EXPECT_EQ(accelerator.device(), on_cpu ? at::Device(at::kCPU) : test_device(accelerator.local_process_index()));
  if (!on_cpu) {
    EXPECT_EQ(torch::empty({1}, test_device(0).type()).device(), accelerator.device());
  }
  CourseNet net(course.width);
  if (course.optimizer == "sgd")
    return train_with(accelerator, course, net,
                      torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
  return train_with(accelerator, course, net, torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(0.01)));
}

/// On a GPU they are near. Under seed 0 nothing runs late. Autocast has other operators on the CPU, so that it is no
/// measure there.
inline void expect_bits_of_cpu(const Course& course, int seeds = 3) {
  set_order(0);
  auto kept = course;
  kept.recompute = false;
  const auto expected = train(kept, /*on_cpu=*/course.precision == "no");
  for (int seed = 0; seed < seeds; ++seed) {
    set_order(static_cast<uint64_t>(seed));
    const auto trained = train(course, /*on_cpu=*/false);
    ASSERT_EQ(trained.size(), expected.size());
    for (size_t i = 0; i < trained.size(); ++i)
      EXPECT_EQ(unexpected_difference(trained[i].second, expected[i].second, course.precision != "no"), "")
          << trained[i].first << ", seed " << seed << ", " << course.optimizer;
  }
}

inline void as_device_ranks(int size, const std::function<void()>& body,
                            std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  as_ranks(
      size,
      [&] {
        use_test_device();
        body();
      },
      std::to_string(size), timeout);
}

}  // namespace muster::testing
