#pragma once

#include <cstdint>
#include <memory>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "muster/data/loader.h"
#include "muster/schedule/schedulers.h"
#include "muster/trainer/module.h"

namespace muster {

/// Lightning's BoringModel, for trying a Trainer and for bug reports: one layer that learns to output 1, with its own
/// random data. Derive from it to change something:
///   struct Mine : muster::BoringModel {
///     torch::Tensor training_step(torch::Tensor batch, int64_t) { return 2 * loss(forward(batch)); }
///   };
/// On one rank the learning rate is too high: the loss grows for an epoch, until the schedule has lowered the rate.
struct BoringModel : TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(32, 2));

  at::Tensor forward(at::Tensor x) { return layer(x); }
  static at::Tensor loss(const at::Tensor& y) { return at::mse_loss(y, at::ones_like(y)); }

  at::Tensor training_step(at::Tensor batch, int64_t) {
    const auto value = loss(forward(batch));
    log("train_loss", value, {.on_epoch = true, .on_step = true});
    return value;
  }
  void validation_step(at::Tensor batch, int64_t) { log("x", loss(forward(batch))); }
  void test_step(at::Tensor batch, int64_t) { log("y", loss(forward(batch))); }

  Optimizers configure_optimizers() override {
    auto sgd = std::make_shared<torch::optim::SGD>(parameters(), 0.1);
    return {sgd, StepLR(*sgd, {.step_size = 1})};
  }

  /// 64 rows of 32 random numbers.
  static auto random() {
    return DataLoader([rows = at::randn({64, 32})](int64_t i) { return rows[i]; }, 64);
  }
  auto train_dataloader() { return random(); }
  auto val_dataloader() { return random(); }
  auto test_dataloader() { return random(); }
  auto predict_dataloader() { return random(); }
};

}  // namespace muster
