#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/runtime/extras.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

using testing::thrown_id;

/// One step of 16-mixed; whether the gradients are finite.
void half_step(Accelerator& accelerator, auto& model, auto& optimizer, float factor) {
  optimizer.zero_grad();
  accelerator.backward(model(torch::ones({2, 4})).sum() * factor);
  optimizer.step();
}

TEST(OptionEffects, TheLossScaleFollowsItsOptions) {
  Accelerator accelerator(
      {.grad_scaler = {.backoff_factor = 0.25, .growth_factor = 3, .growth_interval = 1, .init_scale = 64},
       .mixed_precision = "fp16"});
  torch::nn::Linear net(4, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  half_step(accelerator, model, optimizer, 1);
  EXPECT_EQ(optimizer.scaler_state()->scale, 192);
  half_step(accelerator, model, optimizer, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(optimizer.step_was_skipped());
  EXPECT_EQ(optimizer.scaler_state()->scale, 48);

  Accelerator unscaled({.grad_scaler = {.enabled = false}, .mixed_precision = "fp16"});
  torch::nn::Linear other(4, 1);
  auto [plain, sgd] = unscaled.prepare(other, torch::optim::SGD(other->parameters(), 0.1));
  half_step(unscaled, plain, sgd, std::numeric_limits<float>::infinity());
  EXPECT_FALSE(sgd.step_was_skipped());
}

TEST(OptionEffects, OnlyDeterministicKernelsAreUsed) {
  const bool before = at::globalContext().deterministicAlgorithms();
  Accelerator accelerator({.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(before, false);
}

TEST(OptionEffects, TheAcceleratorIsChosen) {
  EXPECT_TRUE(Fabric({.accelerator = "cpu"}).device().is_cpu());
  EXPECT_NE(thrown_id([] { Fabric fabric({.accelerator = "abacus"}); }), "no error");
}

TEST(Launcher, AnotherNumberOfNodesIsRefused) {
  EXPECT_NE(thrown_id([] {
              Fabric fabric({.devices = 1, .num_nodes = 2});
              fabric.launch();
            }),
            "no error");
}

}  // namespace
}  // namespace muster
