#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/gradients.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return out(in(x).tanh()); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(5, 7))},
      out{register_module("out", torch::nn::Linear(7, 3))};
};
TORCH_MODULE(Net);

torch::Tensor rows() { return torch::sin(torch::arange(20, torch::kFloat)).view({4, 5}); }

double plain_norm() {
  torch::manual_seed(5);
  Net net;
  net->forward(rows()).square().mean().backward();
  return torch::nn::utils::clip_grad_norm_(net->parameters(), 1e9);
}

double norm_of(const char* strategy, const char* precision) {
  torch::manual_seed(5);
  Accelerator accelerator(
      {.grad_scaler = {.init_scale = 128}, .mixed_precision = Precision::parse(precision), .strategy = strategy});
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  const bool alone = accelerator.num_processes() == 1;
  if (alone) {
    EXPECT_EQ(model.grad_norm(), 0);
  }
  const auto x = accelerator.split_between_processes(rows());
  accelerator.backward(model(x).square().mean());
  const double norm = model.grad_norm();
  EXPECT_EQ(norm, model.grad_norm());  // it changes nothing
  EXPECT_EQ(norm, accelerator.clip_grad_norm_(model, 1e9));
  optimizer.zero_grad();
  if (alone) {
    EXPECT_EQ(model.grad_norm(), 0);
  }
  return norm;
}

TEST(GradNorm, IsThatOfLibTorch) {
  EXPECT_NEAR(norm_of("auto", "no"), plain_norm(), 1e-5);
  EXPECT_NEAR(norm_of("auto", "fp16"), plain_norm(), 1e-2);  // after unscaling
}

TEST(GradNorm, IsThatOfTheWholeGradientsOnTwoRanks) {
  testing::as_ranks(2, [] {
    for (const char* strategy : {"ddp", "zero2", "fsdp"}) EXPECT_NEAR(norm_of(strategy, "no"), plain_norm(), 1e-5);
  });
}

TEST(GradNorm, IsZeroInsideAnAccumulationWindow) {
  Accelerator accelerator({.gradient_accumulation_steps = 2});
  Net net;
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  for (const bool last : {false, true}) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(model(rows()).square().mean());
    EXPECT_EQ(model.grad_norm() > 0, last);
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(GradNorm, NeedsTheRuntime) {
  std::optional<Accelerator> accelerator(std::in_place);
  auto model = accelerator->prepare(Net());
  accelerator.reset();
  EXPECT_EQ(testing::thrown_id([&] { model.grad_norm(); }), "MU324");
}

}  // namespace
}  // namespace muster
