// What was logged before an interruption: metric objects, values that wait for a row, windows that begin again.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/combined.h"
#include "muster/runtime/metrics.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster::resumed_logs {
namespace {

namespace fs = std::filesystem;
using testing::CountingModule, testing::quiet, testing::Recorder;

/// Saves after the batches and validation batches that a test names.
struct Saves : Callback {
  explicit Saves(fs::path folder) : folder(std::move(folder)) {}
  fs::path folder;
  std::vector<int64_t> after_batches = {}, after_validation_batches = {};
  static bool has(const std::vector<int64_t>& all, int64_t one) { return std::ranges::count(all, one) > 0; }
  void on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                          BatchPlace place) override {
    if (trainer.current_epoch() == 0 && has(after_batches, place.batch_idx))
      trainer.save_checkpoint(folder / std::to_string(place.batch_idx));
  }
  void on_validation_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                               BatchPlace place) override {
    if (trainer.current_epoch() == 0 && !trainer.sanity_checking() && has(after_validation_batches, place.batch_idx))
      trainer.save_checkpoint(folder / ("v" + std::to_string(place.batch_idx)));
  }
};

struct Measured : CountingModule {
  using CountingModule::CountingModule;
  MeanMetric trained_mean = {}, validated_mean = {};
  ConfusionMatrix confusion = ConfusionMatrix(2);
  bool keeps_own = false;  ///< the module saves its metric itself
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    trained_mean.update(batch + 0.1);
    log("trained_mean", trained_mean);
    log("loss", batch.sum(), {.on_epoch = true, .on_step = true});
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t) {
    validated_mean.update(batch + 0.7);
    const auto label = batch.flatten().to(torch::kLong) % 2;
    confusion.update(torch::zeros_like(label), label);
    log("validated_mean", validated_mean);
    log("confusion", confusion);
  }
  void on_save_checkpoint(State& state) override {
    if (keeps_own) state.set("mean", trained_mean.state_dict());
  }
  void on_load_checkpoint(State& state) override {
    if (keeps_own) trained_mean.load_state_dict(state.at("mean"));
  }
};

struct Left {
  Metrics metrics = {};
  at::Tensor confusion = {};
};
Left left_by(TrainerOptions options, const std::string& from, bool keeps_own = false, int64_t batches = 5) {
  options.max_epochs = 1;
  Measured module(batches, 5);
  module.keeps_own = keeps_own;
  Trainer trainer(quiet(std::move(options)));
  trainer.fit(module, {.ckpt_path = from});
  return {trainer.callback_metrics(), module.confusion.value()};
}

TEST(ResumedLogs, MetricObjectsGoOnInTheMiddleOfEpochs) {
  const testing::TemporaryFolder folder;
  for (const bool keeps_own : {false, true}) {
    const auto saves = std::make_shared<Saves>(folder.path() / std::to_string(keeps_own));
    saves->after_batches = {0, 2, 4};
    saves->after_validation_batches = {0, 2, 4};
    const auto whole = left_by({.callbacks = {saves}}, "", keeps_own);
    EXPECT_NEAR(whole.metrics.at("trained_mean"), 2.1, 1e-6);
    for (const char* place : {"0", "2", "4", "v0", "v2", "v4"}) {
      const auto resumed = left_by({}, (saves->folder / place).string(), keeps_own);
      EXPECT_EQ(resumed.metrics, whole.metrics) << place << keeps_own;
      if (std::string(place) != "v4") {
        EXPECT_TRUE(resumed.confusion.equal(whole.confusion)) << place;
      }
    }
  }
}

TEST(ResumedLogs, AlsoOnTwoRanksWithARankThatHasNoBatchLeft) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    const auto saves = std::make_shared<Saves>(folder.path());
    saves->after_batches = {0, 2};
    saves->after_validation_batches = {0, 1};
    const auto whole = left_by({.callbacks = {saves}, .strategy = "ddp"}, "", false, 6);
    for (const char* place : {"0", "2", "v0", "v1"}) {
      const auto resumed = left_by({.strategy = "ddp"}, (saves->folder / place).string(), false, 6);
      EXPECT_EQ(resumed.metrics, whole.metrics) << place;
      EXPECT_TRUE(resumed.confusion.equal(whole.confusion)) << place;
    }
    EXPECT_NEAR(whole.metrics.at("validated_mean"), 2.7, 1e-6);
  });
  const auto alone = left_by({}, (folder.path() / "0").string(), false, 6);  // what two ranks had, on one
  EXPECT_NEAR(alone.metrics.at("trained_mean"), 2.6, 1e-6);
  EXPECT_NEAR(alone.metrics.at("loss_epoch"), 2.5, 1e-6);
}

/// Logs a value in its second batch only.
struct Rare : CountingModule {
  using CountingModule::CountingModule;
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    if (batch_idx == 1) log("rare", 7.0);
    log("often", static_cast<double>(batch_idx));
    return CountingModule::training_step(batch, batch_idx);
  }
};

std::vector<Recorder::Row> rows_of(const fs::path& root, const std::string& from, std::shared_ptr<Saves> saves) {
  const auto recorder = std::make_shared<Recorder>();
  Rare module(6);
  TrainerOptions options{.log_every_n_steps = 4, .max_epochs = 2};
  if (saves) options.callbacks = {saves};
  Trainer trainer(testing::logging_to(root, recorder, options));
  trainer.fit(module, {.ckpt_path = from});
  return recorder->rows;
}

TEST(ResumedLogs, AValueThatWaitsForItsRowIsNotLost) {
  const testing::TemporaryFolder folder;
  const auto saves = std::make_shared<Saves>(folder.path());
  saves->after_batches = {0, 1, 2};
  const auto whole = rows_of(folder.path() / "whole", "", saves);
  ASSERT_EQ(whole.size(), 3U);
  EXPECT_EQ(whole[0].first, 3);
  EXPECT_EQ(whole[0].second.at("rare"), 7);
  EXPECT_EQ(whole[1].second.at("rare"), 7);  // of the second epoch
  for (const char* place : {"0", "1", "2"})
    EXPECT_EQ(rows_of(folder.path() / place / "logs", (folder.path() / place).string(), nullptr), whole) << place;
}

/// Logs the batches of windows that a sharding strategy runs again.
struct Windows : TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(1, 4));
  MeanMetric mean = {};
  std::vector<double> seen = {};
  int64_t validations = 0;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) {
    seen.push_back(batch[0].item<double>());
    log("sum", batch.sum(), {.on_epoch = true, .on_step = false, .reduce_fx = "sum"});
    mean.update(batch);
    log("mean", mean);
    return layer(batch.unsqueeze(1)).square().mean();
  }
  void validation_step(torch::Tensor&, int64_t) { ++validations; }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
};

struct SavesInWindow : Callback {
  fs::path folder = {};
  void on_validation_end(Trainer& trainer, TrainerModule&) override {
    if (!trainer.sanity_checking()) trainer.save_checkpoint(folder / std::to_string(trainer.runtime().world_size()));
    folder = folder / "later";
  }
};

TEST(ResumedLogs, ABatchOfAWindowThatBeginsAgainIsLoggedOnce) {
  const testing::InheritedFolder folder;
  const auto run = [&](const std::string& from, std::shared_ptr<SavesInWindow> saves, int64_t validate_every) {
    torch::manual_seed(1);
    const auto module = std::make_shared<Windows>();
    TrainerOptions options{
        .accumulate_grad_batches = 4, .limit_val_batches = 1, .max_epochs = 1, .val_check_interval = validate_every};
    options.strategy = read_cluster_environment().world_size > 1 ? "fsdp" : "auto";
    if (saves) options.callbacks = {saves};
    Trainer trainer(quiet(options));
    trainer.fit(module, CountingModule::numbers(20), CountingModule::numbers(8), {.ckpt_path = from});
    Metrics metrics = trainer.callback_metrics();
    metrics["steps"] = static_cast<double>(trainer.global_step());
    metrics["epochs"] = static_cast<double>(trainer.current_epoch());
    return metrics;
  };
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    const auto saves = std::make_shared<SavesInWindow>();
    saves->folder = folder.path();
    const auto whole = run("", saves, 6);
    EXPECT_EQ(whole.at("sum"), 190);
    EXPECT_EQ(whole.at("steps"), 3);
    EXPECT_EQ(run((folder.path() / "2").string(), nullptr, 6), whole);
  });
  const auto alone = run((folder.path() / "2").string(), nullptr, 12);
  EXPECT_EQ(alone.at("sum"), 190);
  EXPECT_NEAR(alone.at("mean"), 9.5, 1e-6);
}

/// Two loaders side by side.
struct SideBySide : TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(1, 4));
  std::vector<std::vector<double>> seen = {};
  int64_t validations = 0;
  torch::Tensor training_step(std::tuple<torch::Tensor&, torch::Tensor&>& batches, int64_t) {
    auto& [a, b] = batches;
    seen.push_back({a[0].item<double>(), b[0].item<double>()});
    return layer((a + b).unsqueeze(1)).square().mean();
  }
  void validation_step(torch::Tensor&, int64_t) { ++validations; }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
};

TEST(ResumedLogs, SeveralLoadersGoBackTogetherAndContinueOnOneRank) {
  const testing::InheritedFolder folder;
  const auto loaders = combine(CombineMode::max_size_cycle, CountingModule::numbers(8), CountingModule::numbers(24));
  const auto run = [&](const std::string& from, std::shared_ptr<SavesInWindow> saves, int64_t validate_every) {
    torch::manual_seed(1);
    const auto module = std::make_shared<SideBySide>();
    TrainerOptions options{
        .accumulate_grad_batches = 4, .limit_val_batches = 1, .max_epochs = 1, .val_check_interval = validate_every};
    options.strategy = read_cluster_environment().world_size > 1 ? "fsdp" : "auto";
    if (saves) options.callbacks = {saves};
    Trainer trainer(quiet(options));
    trainer.fit(module, loaders, CountingModule::numbers(8), {.ckpt_path = from});
    EXPECT_EQ(trainer.current_epoch(), 1);
    EXPECT_GT(module->validations, 0);
    return module->seen;
  };
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    const auto saves = std::make_shared<SavesInWindow>();
    saves->folder = folder.path();
    const auto whole = run("", saves, 6);  // the first save comes after 6 of 12 batches: 2 of a window
    ASSERT_EQ(whole.size(), 12U);
    const auto resumed = run((folder.path() / "2").string(), nullptr, 6);
    EXPECT_EQ(resumed, (std::vector(whole.begin() + 4, whole.end())));
  });
  const auto alone = run((folder.path() / "2").string(), nullptr, 12);
  ASSERT_EQ(alone.size(), 16U);  // the window began after 8 of 24
  EXPECT_EQ(alone.front(), (std::vector<double>{0, 8}));
  EXPECT_EQ(alone.back(), (std::vector<double>{7, 23}));
}

/// Draws its data where its loader is made.
struct Drawn : TrainerModule {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(2, 2));
  torch::nn::Dropout dropout = register_module("dropout", torch::nn::Dropout(0.5));
  int64_t loads = 0;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return dropout(layer(batch)).square().mean(); }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.01); }
  auto train_dataloader() {
    ++loads;
    return DataLoader([rows = torch::randn({6, 2})](int64_t i) { return rows[i]; }, 6, {.shuffle = true});
  }
};

TEST(ResumedLogs, LoadersThatAreMadeAnewAreThoseOfTheUninterruptedRun) {
  const testing::TemporaryFolder folder;
  const auto run = [&](const std::string& from, bool saves) {
    torch::manual_seed(8);
    Drawn module;
    TrainerOptions options{.max_epochs = 4, .num_sanity_val_steps = 0, .reload_dataloaders_every_n_epochs = 2};
    options.enable_model_summary = options.enable_progress_bar = false;
    options.default_root_dir = folder.path() / (saves ? "whole" : "resumed");
    if (saves)
      options.callbacks = {
          std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.filename = "{epoch}", .save_top_k = -1})};
    options.enable_checkpointing = saves;
    Trainer trainer(options);
    trainer.fit(module, {.ckpt_path = from});
    return module.layer->weight.detach().clone();
  };
  const auto whole = run("", true);
  EXPECT_TRUE(run((folder.path() / "whole/checkpoints/epoch=1.ckpt").string(), false).equal(whole));
}

}  // namespace
}  // namespace muster::resumed_logs
