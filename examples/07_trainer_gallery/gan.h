// A GAN learns to draw digits: two optimizers, which the module steps itself.
#pragma once

#include <muster/trainer.h>
#include <torch/torch.h>

#include "../digits.h"

struct Gan : muster::TrainerModule {
  torch::nn::Sequential generator =
      register_module("generator", torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                                                         torch::nn::Linear(64, 64), torch::nn::Sigmoid()));
  torch::nn::Sequential discriminator = register_module(
      "discriminator",
      torch::nn::Sequential(torch::nn::Linear(64, 64), torch::nn::LeakyReLU(), torch::nn::Linear(64, 1)));

  Gan() { automatic_optimization = false; }
  torch::Tensor drawn(int64_t images) { return generator->forward(torch::randn({images, 16}, device())); }
  torch::Tensor loss(const torch::Tensor& images, double real) {
    const auto guess = discriminator->forward(images);
    return torch::binary_cross_entropy_with_logits(guess, torch::full_like(guess, real));
  }

  void training_step(torch::data::Example<>& batch, int64_t) {
    auto [g, d] = optimizers<2>();
    const auto real = batch.data.flatten(1);
    {
      auto only = toggled_optimizer(g);  // gradients of the generator alone
      const auto g_loss = loss(drawn(real.size(0)), 1);
      manual_backward(g_loss);
      g.step();
      g.zero_grad();
      log("g_loss", g_loss, {.prog_bar = true});
    }
    auto only = toggled_optimizer(d);
    const auto d_loss = loss(real, 1) + loss(drawn(real.size(0)).detach(), 0);
    manual_backward(d_loss);
    clip_gradients(d, {.value = 1.0});
    d.step();
    d.zero_grad();
    log("d_loss", d_loss, {.prog_bar = true});
  }
  void validation_step(torch::data::Example<>&, int64_t batch_idx) {
    if (batch_idx > 0) return;
    const auto images = drawn(8).view({8, 1, 8, 8});
    muster::log_images(trainer().logger(), {{"digits", images}}, global_step());
    log("ink", images.mean());
  }
  void on_fit_start() override { torch::manual_seed(1 + trainer().runtime().rank()); }  // noise of its own on each rank
  void on_train_epoch_end() override {
    const auto& metrics = trainer().callback_metrics();
    trainer().print("epoch {}: generator {:.4f}, discriminator {:.4f}, ink {:.4f}", current_epoch(),
                    metrics.at("g_loss"), metrics.at("d_loss"), metrics.at("ink"));
  }
  muster::Optimizers configure_optimizers() override {
    const auto options = torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});
    return {torch::optim::Adam(generator->parameters(), options),
            torch::optim::Adam(discriminator->parameters(), options)};
  }
};

inline void train_gan() {
  muster::Trainer trainer({.default_root_dir = "gan", .logger = {.log_with = {"tensorboard"}}, .max_epochs = 3});
  Gan gan;
  trainer.fit(gan, muster::DataLoader(Digits(Digits::Part::train), {.batch_size = 64, .shuffle = true}),
              muster::DataLoader(Digits(Digits::Part::test), {.batch_size = 64}));
}
