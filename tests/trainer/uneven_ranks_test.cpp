// Ranks that log, decide or fail differently.
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/schedule/schedulers.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::uneven_ranks {
namespace {

using testing::CountingModule, testing::quiet;

/// Does what a test wants with the batches of validation.
struct Validated : CountingModule {
  using CountingModule::CountingModule;
  std::function<void(Validated&, torch::Tensor&)> in_validation = {};
  void validation_step(torch::Tensor& batch, int64_t) { in_validation(*this, batch); }
  int64_t rank() const { return trainer().runtime().rank(); }
};

TEST(UnevenRanks, AValueOfAStepIsThatOfTheRanksThatHaveABatch) {
  testing::as_ranks(2, [] {
    Validated module(1, 3);  // rank 1 has no second batch
    std::vector<double> means, sums;
    module.in_validation = [&](Validated& m, torch::Tensor& batch) {
      m.log("mean", batch.sum(), {.on_step = true, .sync_dist = true});
      m.log("sum", batch.sum(), {.on_step = true, .reduce_fx = "sum", .sync_dist = true});
      m.log("most", batch.sum(), {.on_step = true, .reduce_fx = "max", .sync_dist = true});
      means.push_back(m.trainer().callback_metrics().at("mean_step"));
      sums.push_back(m.trainer().callback_metrics().at("sum_step"));
    };
    Trainer trainer(quiet({}));
    const auto metrics = trainer.validate(module);
    EXPECT_DOUBLE_EQ(means.at(0), 0.5);  // of 0 and 1
    EXPECT_DOUBLE_EQ(sums.at(0), 1);
    if (module.w.defined() && trainer.runtime().rank() == 0) {
      EXPECT_DOUBLE_EQ(means.at(1), 2);
      EXPECT_DOUBLE_EQ(sums.at(1), 2);
    }
    EXPECT_DOUBLE_EQ(metrics.at(0).at("mean_epoch"), 1);
    EXPECT_DOUBLE_EQ(metrics.at(0).at("most_epoch"), 2);
  });
}

TEST(UnevenRanks, PredictionsHaveAListForEachLoader) {
  struct Doubling : TrainerModule {
    torch::Tensor w = register_parameter("w", torch::ones({}));
    double predict_step(torch::Tensor& batch, int64_t) { return (batch * w * 2).sum().item<double>(); }
  };
  testing::as_ranks(2, [] {
    Doubling module;
    Trainer trainer(quiet({}));
    const auto all = trainer.predict(module, std::vector{CountingModule::numbers(3), CountingModule::numbers(1)});
    using Lists = std::vector<std::vector<double>>;
    EXPECT_EQ(all, trainer.runtime().rank() == 0 ? (Lists{{0, 4}, {0}}) : (Lists{{2}, {}}));
  });
}

TEST(UnevenRanks, NaNOfOneRankIsNotLost) {
  testing::as_ranks(2, [] {
    Validated module(1, 2);
    module.in_validation = [](Validated& m, torch::Tensor&) {
      const double value = m.rank() == 1 ? std::numeric_limits<double>::quiet_NaN() : 1;
      m.log("mean", value);
      m.log("most", value, {.reduce_fx = "max"});
      m.log("least", value, {.reduce_fx = "min"});
    };
    Trainer trainer(quiet({}));
    const auto metrics = trainer.validate(module).at(0);
    EXPECT_TRUE(std::isnan(metrics.at("mean")));
    EXPECT_TRUE(std::isnan(metrics.at("most"))) << metrics.at("most");
    EXPECT_TRUE(std::isnan(metrics.at("least"))) << metrics.at("least");
  });
}

TEST(UnevenRanks, AMetricThatOneRankLogsStopsAll) {
  testing::as_ranks(2, [] {
    for (const int64_t logs : {0, 1}) {
      Validated module(2, 2);
      module.in_validation = [&](Validated& m, torch::Tensor&) {
        if (m.rank() == logs) m.log("v", 1.0, {.sync_dist = false});
      };
      const auto stop =
          std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v", .patience = 2, .strict = false});
      Trainer trainer(quiet({.callbacks = {stop}, .max_epochs = 6}));
      trainer.fit(module);
      EXPECT_EQ(trainer.current_epoch(), 3) << logs;
    }
  });
}

TEST(UnevenRanks, TheMainRanksMetricChoosesCheckpointsAndRates) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    struct Own : CountingModule {
      using CountingModule::CountingModule;
      torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
        const auto rank = trainer().runtime().rank();
        if (rank == 0) log("of_main", static_cast<double>(batch_idx));
        log("own", rank == 0 ? 1.0 : 1.0 / static_cast<double>(batch_idx + 1));
        return CountingModule::training_step(batch, batch_idx);
      }
    };
    Own own(8);
    own.make_optimizers = [](CountingModule& m) -> Optimizers {
      auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 1.0);
      return {sgd, LRSchedulerConfig{.interval = "step",
                                     .monitor = "own",
                                     .scheduler = ReduceLROnPlateau(*sgd, {.factor = 0.5, .patience = 0})}};
    };
    const auto saver = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder.path() / "kept",
                                                                                .every_n_train_steps = 1,
                                                                                .filename = "{step}",
                                                                                .mode = "max",
                                                                                .monitor = "of_main",
                                                                                .save_top_k = 2});
    auto options = quiet({.callbacks = {saver}, .max_epochs = 1});
    options.enable_checkpointing = true;
    Trainer trainer(options);
    trainer.fit(own);
    EXPECT_EQ(own.rates, (std::vector<double>{1, 1, 0.5, 0.25}));  // 1 on rank 0: no improvement
    EXPECT_EQ(saver->best_model_path().filename(), "step=4.ckpt");
    EXPECT_EQ(saver->best_k_models().size(), 2U);
    trainer.runtime().barrier();
  });
}

/// Rank 1 asks for the end in one hook, of batch 1 where it belongs to one.
struct Stopping : CountingModule {
  explicit Stopping(std::string where) : CountingModule(10, 2), where(std::move(where)) {}
  std::string where;
  void at(const char* hook) const {
    if (where == hook && trainer().runtime().rank() == 1) trainer().stop();
  }
  void on_train_start() override { at("on_train_start"); }
  void on_train_epoch_start() override { at("on_train_epoch_start"); }
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    if (batch_idx == 1) at("training_step");
    return CountingModule::training_step(batch, batch_idx);
  }
  void on_train_batch_end(const StepOutput&, torch::Tensor&, int64_t batch_idx) {
    if (batch_idx == 1) at("on_train_batch_end");
  }
  void on_validation_end() override { at("on_validation_end"); }
  void on_train_epoch_end() override { at("on_train_epoch_end"); }
};

/// Batches that each rank has trained when rank 1 asks for the end there; they have five each in an epoch.
int64_t trained_until_stop(const char* where, const TrainerOptions& options) {
  Stopping module(where);
  Trainer trainer(quiet(options));
  trainer.fit(module);
  EXPECT_EQ(trainer.current_epoch(), std::string(where) == "on_train_start" ? 0 : 1) << where;
  const auto mine = std::ssize(module.trained);
  EXPECT_EQ(trainer.runtime().reduce(torch::tensor(mine), "sum").item<int64_t>(), 2 * mine) << where;
  return mine;
}

TEST(UnevenRanks, AStopOfOneRankStopsAll) {
  for (const bool sharded : {false, true})
    testing::as_ranks(
        2,
        [&] {
          const Accelerator keeps_the_meeting_place;
          const TrainerOptions options{.max_epochs = 2, .strategy = sharded ? "fsdp" : "ddp"};
          EXPECT_EQ(trained_until_stop("on_train_start", options), 0);
          EXPECT_EQ(trained_until_stop("on_train_epoch_start", options), 0);
          EXPECT_EQ(trained_until_stop("training_step", options), 2);
          EXPECT_EQ(trained_until_stop("on_train_batch_end", options), sharded ? 2 : 3);
          EXPECT_EQ(trained_until_stop("on_validation_end", options), 5);
          EXPECT_EQ(trained_until_stop("on_train_epoch_end", options), 5);
          auto windows = options;
          windows.accumulate_grad_batches = 4;
          EXPECT_EQ(trained_until_stop("training_step", windows), 4);
        },
        sharded ? "fsdp" : "ddp");
}

struct Broken : std::runtime_error {
  Broken() : std::runtime_error("broken on rank 1") {}
};

/// Throws on rank 1 in one hook.
struct Failing : CountingModule {
  explicit Failing(std::string where) : CountingModule(4, 4), where(std::move(where)) {}
  std::string where;
  void at(const char* hook) const {
    if (where == hook && trainer().runtime().rank() == 1) throw Broken();
  }
  void prepare_data() override { at("prepare_data"); }
  void setup(Stage) override { at("setup"); }
  void teardown(Stage) override { at("teardown"); }
  void configure_model() override { at("configure_model"); }
  Optimizers configure_optimizers() override {
    return at("configure_optimizers"), CountingModule::configure_optimizers();
  }
  void on_fit_start() override { at("on_fit_start"); }
  void on_train_start() override { at("on_train_start"); }
  void on_train_epoch_start() override { at("on_train_epoch_start"); }
  torch::Tensor training_step(torch::Tensor& batch, int64_t i) {
    at("training_step");
    return CountingModule::training_step(batch, i);
  }
  void on_before_zero_grad(ModuleOptimizer&) override { at("on_before_zero_grad"); }
  void on_after_backward() override { at("on_after_backward"); }
  void on_before_optimizer_step(ModuleOptimizer&) override { at("on_before_optimizer_step"); }
  void on_train_batch_end(const StepOutput&, torch::Tensor&, int64_t) { at("on_train_batch_end"); }
  void validation_step(torch::Tensor&, int64_t) { at("validation_step"), log("v", 1.0); }
  void on_validation_epoch_end() override { at("on_validation_epoch_end"); }
  void on_validation_end() override { at("on_validation_end"); }
  void on_train_epoch_end() override { at("on_train_epoch_end"); }
  void on_save_checkpoint(State&) override { at("on_save_checkpoint"); }
  void on_train_end() override { at("on_train_end"); }
  void on_fit_end() override { at("on_fit_end"); }
};

TEST(UnevenRanks, AnExceptionOfOneRankEndsAll) {
  const testing::InheritedFolder folder;
  for (const bool rescues : {false, true}) {
    const std::vector<const char*> hooks =
        rescues ? std::vector{"training_step", "on_train_batch_end"}
                : std::vector{"setup",           "training_step",      "on_before_optimizer_step",
                              "validation_step", "on_train_epoch_end", "on_save_checkpoint",
                              "on_train_end"};
    for (const char* hook : hooks) {
      testing::as_ranks(
          2,
          [&] {
            const auto began = std::chrono::steady_clock::now();
            const auto saver = std::make_shared<ModelCheckpoint>(
                ModelCheckpointOptions{.dirpath = folder.path() / hook, .save_on_exception = rescues});
            auto options = quiet({.callbacks = {saver}, .max_epochs = 1, .strategy = "ddp"});
            options.enable_checkpointing = true;
            std::string seen;
            int rank = 0;
            try {
              Trainer trainer(options);
              rank = trainer.runtime().rank();
              Failing module(hook);
              trainer.fit(module);
              trainer.runtime().barrier();  // a rank that has ended its part learns of it here
            } catch (const Broken& error) {
              seen = error.what();
            } catch (const Error& error) {
              seen = error.id();
            }
            EXPECT_FALSE(seen.empty()) << hook;
            if (rank == 1) {
              EXPECT_EQ(seen, "broken on rank 1") << hook;
            }
            EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30)) << hook;
          },
          std::string(hook) + (rescues ? ", rescued" : ""));
    }
  }
}

}  // namespace
}  // namespace muster::uneven_ranks
