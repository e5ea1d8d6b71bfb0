#pragma once

#include <memory>

#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/schedule/schedulers.h"
#include "muster/trainer.h"

namespace muster::testing {

/// The model of Lightning's own tests: one layer that learns to answer 1.
struct BoringModel : TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(32, 2));

  torch::Tensor forward(torch::Tensor x) { return layer(x); }
  static torch::Tensor loss(const torch::Tensor& y) { return torch::mse_loss(y, torch::ones_like(y)); }

  torch::Tensor training_step(torch::Tensor batch, int64_t) {
    const auto value = loss(forward(batch));
    log("train_loss", value, {.on_epoch = true, .on_step = true});
    return value;
  }
  void validation_step(torch::Tensor batch, int64_t) { log("x", loss(forward(batch))); }
  void test_step(torch::Tensor batch, int64_t) { log("y", loss(forward(batch))); }

  Optimizers configure_optimizers() override {
    auto sgd = std::make_shared<torch::optim::SGD>(parameters(), 0.1);
    return {sgd, StepLR(*sgd, {.step_size = 1})};
  }

  static auto random() {
    return DataLoader([rows = torch::randn({64, 32})](int64_t i) { return rows[i]; }, 64);
  }
  auto train_dataloader() { return random(); }
  auto val_dataloader() { return random(); }
  auto test_dataloader() { return random(); }
  auto predict_dataloader() { return random(); }
};

}  // namespace muster::testing
