// Lightning's BoringModel: one layer learns to answer 1. A monitored value says which checkpoint is best, and when
// training ends.
#pragma once

#include <memory>

#include <muster/parallel/wrap.h>
#include <muster/trainer.h>
#include <muster/trainer/boring_model.h>
#include <torch/torch.h>

// Its own rate is too high for one rank.
struct SlowBoringModel : muster::BoringModel {
  muster::Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
};

// Here the program says which parts are sharded by themselves; otherwise that is found out.
struct WrappedBoringModel : SlowBoringModel {
  void configure_sharded_model() override { muster::wrap(layer); }
};

template <class Module>
void train_boring_model() {
  auto best =
      std::make_shared<muster::ModelCheckpoint>(muster::ModelCheckpointOptions{.dirpath = "boring", .monitor = "x"});
  auto enough =
      std::make_shared<muster::EarlyStopping>(muster::EarlyStoppingOptions{.monitor = "x", .stopping_threshold = 0.01});
  muster::Trainer trainer({.callbacks = {best, enough}, .max_epochs = 30});
  Module model;
  trainer.fit(model);
  const auto tested = trainer.test(model, {.ckpt_path = "best"});
  const auto predictions = trainer.predict(model);
  trainer.print("boring: best {:.5f} after {} epochs, test {:.5f}, {} predictions", *best->best_model_score(),
                trainer.current_epoch(), tested.at(0).at("y"), predictions.size());
}
