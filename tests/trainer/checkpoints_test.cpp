#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/schedule/schedulers.h"
#include "muster/trainer.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"

// Checkpoints between the Trainer and programs of Accelerator's, and from two ranks to one.

namespace muster {
namespace {

namespace fs = std::filesystem;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 1));
  torch::Tensor loss(const torch::Tensor& batch) { return out(torch::tanh(hidden(batch))).square().mean(); }
};
TORCH_MODULE(Net);

/// The same, as the Trainer takes it: with the names of the plain module.
struct Lit : TrainerModule {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(2, 8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 1));
  std::vector<torch::Tensor> seen = {};
  bool counts_steps = false;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) {
    seen.push_back(batch.clone());
    return out(torch::tanh(hidden(batch))).square().mean();
  }
  Optimizers configure_optimizers() override {
    if (counts_steps) trainer().estimated_stepping_batches();  // makes the loaders, before they are loaded
    auto adam = std::make_shared<torch::optim::AdamW>(parameters(), 0.05);
    return {adam, StepLR(*adam, {.gamma = 0.5, .step_size = 1})};
  }
};

auto rows() {
  return DataLoader(
      [](int64_t i) {
        return torch::tensor({static_cast<float>(i), 1.0F}) / 16;
      },
      16, {.batch_size = 2, .seed = 5, .shuffle = true});
}

struct Trained {
  std::vector<torch::Tensor> seen = {}, weights = {};
};

template <class M>
std::vector<torch::Tensor> copies(const M& module) {
  std::vector<torch::Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().clone());
  return all;
}

Trained by_trainer(TrainerOptions options, const FitOptions& how) {
  options.enable_checkpointing = !options.callbacks.empty();
  torch::manual_seed(2);
  const auto lit = std::make_shared<Lit>();
  Trainer trainer(options);
  trainer.fit(lit, rows(), how);
  Trained result{.seen = lit->seen};
  trainer.runtime().summon_full_params(trainer.model(), [&] { result.weights = copies(*lit); });
  return result;
}

/// A loop under Accelerator, which ends after so many epochs of all.
struct Program {
  explicit Program(const AcceleratorOptions& options = {}) : accelerator(options) {
    torch::manual_seed(4);
    net = Net();
    adam = std::make_shared<torch::optim::AdamW>(net->parameters(), 0.05);
    std::tie(model, optimizer, scheduler, batches) =
        accelerator.prepare(net, *adam, StepLR(*adam, {.gamma = 0.5, .step_size = 1}), rows());
    scheduler.set_step_with_optimizer(false);
  }
  void step(const torch::Tensor& batch) {
    accelerator.backward(model.run(&NetImpl::loss, batch));
    optimizer.step();
    optimizer.zero_grad();
  }
  Trained train_to(int64_t epochs) {
    std::vector<torch::Tensor> seen;
    while (batches.epoch() < epochs) {
      for (auto& batch : batches) {
        seen.push_back(batch.clone());
        step(batch);
        if (batches.end_of_dataloader()) scheduler.step();
      }
    }
    return {seen, copies(*net)};
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::shared_ptr<torch::optim::AdamW> adam;
  Model<NetImpl> model;
  Optimizer optimizer;
  Scheduler scheduler;
  DataLoader<torch::Tensor> batches;
};

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

std::shared_ptr<ModelCheckpoint> every_step(const fs::path& folder) {
  return std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder, .every_n_train_steps = 1, .filename = "{step}", .save_top_k = -1});
}

void expect_continued_on_one_rank(const char* strategy) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    by_trainer({.callbacks = {every_step(folder.path())}, .max_epochs = 2, .strategy = strategy}, {});
  });
  for (const int64_t step : {2, 4, 5}) {
    const auto saved = folder.path() / ("step=" + std::to_string(step) + ".ckpt");
    const auto trained = by_trainer({.max_epochs = 3}, {.ckpt_path = saved});
    Program program;
    program.accelerator.load_state(saved);
    const auto wanted = program.train_to(3);
    EXPECT_EQ(trained.seen.size(), 24U - 2 * static_cast<std::size_t>(step));
    expect_equal(trained.seen, wanted.seen);
    expect_equal(trained.weights, wanted.weights);
  }
}

TEST(Checkpoints, FromTwoRanksToOneTheSamplesFollowAndTheBitsAreAccelerators) { expect_continued_on_one_rank("ddp"); }

TEST(Checkpoints, AlsoIfTheyWereSharded) { expect_continued_on_one_rank("fsdp"); }

TEST(Checkpoints, OfAcceleratorOpenInTheTrainer) {
  const testing::TemporaryFolder folder;
  Program program;
  program.train_to(1);
  program.accelerator.save_state(folder.path() / "saved");
  // The samples of epoch 0, with the weights, the moments and the rate after an epoch under Accelerator.
  Program again;
  OpenedCheckpoint opened(again.accelerator, folder.path() / "saved");
  opened.load_models();
  opened.load_optimizers();
  const auto expected = again.train_to(1).weights;
  for (const bool counts_steps : {false, true}) {
    torch::manual_seed(2);
    const auto lit = std::make_shared<Lit>();
    lit->counts_steps = counts_steps;
    Trainer trainer({.enable_checkpointing = false, .max_epochs = 1});
    trainer.fit(lit, rows(), {.ckpt_path = folder.path() / "saved"});
    EXPECT_EQ(trainer.current_epoch(), 1);
    EXPECT_EQ(lit->seen.size(), 8U);
    expect_equal(copies(*lit), expected);
  }
}

}  // namespace
}  // namespace muster
