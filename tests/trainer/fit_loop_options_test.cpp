#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::fit_loop_options {
namespace {

using testing::CountingModule, testing::quiet;
using Indices = std::vector<int64_t>;
using std::chrono::milliseconds, std::chrono::seconds, std::chrono::steady_clock;

/// What max_epochs, min_epochs and min_steps make of a time limit that every batch exceeds.
auto timed(TrainerOptions options) {
  CountingModule module(5);
  module.on_batch = [](CountingModule&) {
    for (const auto end = steady_clock::now() + milliseconds(2); steady_clock::now() < end;) {}
  };
  if (!options.max_time) options.max_time = milliseconds(1);
  Trainer trainer(quiet(options));
  trainer.fit(module);
  return std::tuple(std::ssize(module.trained), trainer.current_epoch(), std::ssize(module.validated_after));
}

TEST(FitLoopOptions, TimeEndsTrainingAfterTheBatchAndTheMinima) {
  EXPECT_EQ(timed({}), std::tuple(1, 1, 1)) << "it validates first";
  EXPECT_EQ(timed({.min_epochs = 2}), std::tuple(10, 2, 2));
  EXPECT_EQ(timed({.min_steps = 7}), std::tuple(7, 2, 2));
  EXPECT_EQ(timed({.max_time = "00:00:00:00"}), std::tuple(0, 0, 0));
  EXPECT_EQ(timed({.max_epochs = 1, .max_time = "00:12:00:00"}), std::tuple(5, 1, 1));
}

TEST(FitLoopOptions, TimeBeforeResumingCounts) {
  const testing::TemporaryFolder folder;
  const auto saved = folder.path() / "saved";
  CountingModule first(5);
  first.on_batch = [](CountingModule& module) {
    for (const auto end = steady_clock::now() + milliseconds(3); steady_clock::now() < end;) {}
    if (module.trained.size() == 5) module.trainer().stop();
  };
  Trainer before(quiet({.max_time = "00:01:00:00"}));
  before.fit(first);
  before.save_checkpoint(saved);
  CountingModule second(5);
  Trainer after(quiet({.max_time = milliseconds(14)}));
  after.fit(second, {.ckpt_path = saved.string()});
  EXPECT_TRUE(second.trained.empty());
}

TEST(FitLoopOptions, TheMainRanksClockDecidesForAll) {
  testing::as_ranks(2, [] { EXPECT_EQ(timed({.min_steps = 3}), std::tuple(3, 1, 1)); });
}

TEST(FitLoopOptions, ValidationFollowsAClock) {
  const auto validated = [](TrainerOptions options) {
    CountingModule module(3);
    options.max_epochs = 2;
    Trainer(quiet(options)).fit(module);
    return module.validated_after;
  };
  EXPECT_EQ(validated({.val_check_interval = seconds(0)}), (Indices{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(validated({.val_check_interval = "10:00:00:00"}), Indices());
  EXPECT_EQ(validated({.check_val_every_n_epoch = 2, .val_check_interval = seconds(0)}), (Indices{4, 5, 6}));
  EXPECT_EQ(validated({.check_val_every_n_epoch = std::nullopt, .val_check_interval = seconds(0)}).size(), 6u);
}

/// Its loaders shuffle.
struct Shuffled : CountingModule {
  std::vector<float> seen = {}, validated = {};
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    seen.push_back(batch.item<float>());
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t) { validated.push_back(batch.item<float>()); }
  static auto shuffled() {
    return DataLoader([](int64_t i) { return torch::tensor({static_cast<float>(i)}); }, 10,
                      {.seed = 1, .shuffle = true});
  }
  auto train_dataloader() { return shuffled(); }
  auto val_dataloader() { return shuffled(); }
};

TEST(FitLoopOptions, OverfittingTakesTheSameBatchesInOrder) {
  const auto fit = [](const BatchLimit& batches) {
    Shuffled module;
    Trainer(quiet({.max_epochs = 2, .overfit_batches = batches})).fit(module);
    return std::pair(module.seen, module.validated);
  };
  const std::vector<float> three{0, 1, 2, 0, 1, 2}, two{0, 1, 0, 1};
  EXPECT_EQ(fit(3), std::pair(three, three));
  EXPECT_EQ(fit(0.2), std::pair(two, two));
  EXPECT_NE(fit(0.0).first, three);
}

struct Staged : CountingModule {
  Staged() : CountingModule(5, 5) {}
  int64_t validations = 0, tests = 0;
  std::optional<bool> inference, grad;
  void note() {
    inference = c10::InferenceMode::is_enabled();
    grad = torch::GradMode::is_enabled();
  }
  void validation_step(torch::Tensor&, int64_t) { ++validations, note(); }
  void test_step(torch::Tensor&, int64_t) { ++tests, note(); }
  torch::Tensor predict_step(torch::Tensor& batch, int64_t) { return note(), w * batch; }
  auto test_dataloader() { return numbers(5); }
  auto predict_dataloader() { return numbers(5); }
};

TEST(FitLoopOptions, EachStageHasALimit) {
  Staged module;
  Trainer trainer(quiet({.limit_predict_batches = 4,
                         .limit_test_batches = 3,
                         .limit_train_batches = 2,
                         .limit_val_batches = 1,
                         .max_epochs = 1}));
  trainer.fit(module);
  trainer.test(module);
  EXPECT_EQ(module.trained.size(), 2u);
  EXPECT_EQ(module.validations, 1);
  EXPECT_EQ(module.tests, 3);
  EXPECT_EQ(trainer.predict(module).size(), 4u);
}

TEST(FitLoopOptions, EvaluationRunsInInferenceModeOutsideOfFit) {
  Staged module;
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(module.inference, false) << "validation in fit";
  EXPECT_EQ(module.grad, false);
  trainer.validate(module);
  EXPECT_EQ(module.inference, true);
  trainer.test(module);
  EXPECT_EQ(module.inference, true);
  trainer.predict(module);
  EXPECT_EQ(module.inference, true);
  trainer.fit(module);
  Trainer plain(quiet({.inference_mode = false}));
  plain.validate(module);
  EXPECT_EQ(module.inference, false);
  EXPECT_EQ(module.grad, false);
}

struct Root : CountingModule {
  torch::Tensor training_step(torch::Tensor&, int64_t) { return torch::sqrt(w - 2); }
};

TEST(FitLoopOptions, AnAnomalyIsFoundInBackward) {
  const auto message = [](bool detect) {
    Root module;
    try {
      Trainer(quiet({.detect_anomaly = detect, .max_steps = 1})).fit(module);
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_NE(message(true).find("SqrtBackward0"), std::string::npos) << message(true);
  EXPECT_EQ(message(false), "none");
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

struct Called : Callback {
  int calls = 0;
  void on_train_batch_end(Trainer&, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) override {
    ++calls;
  }
};
struct Logging : CountingModule {
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    log("loss", 1.0);
    return CountingModule::training_step(batch, batch_idx);
  }
};

TEST(FitLoopOptions, ABareRunLogsAndSavesNothing) {
  const testing::TemporaryFolder folder;
  const auto called = std::make_shared<Called>();
  Logging module;
  Trainer trainer({.barebones = true, .callbacks = {called}, .default_root_dir = folder.path(), .max_epochs = 1});
  trainer.fit(module);
  EXPECT_TRUE(trainer.callback_metrics().empty());
  EXPECT_EQ(module.sanity_batches, 0);
  EXPECT_EQ(called->calls, 5);
  EXPECT_EQ(module.validated_after, (Indices{5}));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

struct Normalized : TrainerModule {
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(1));
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return norm(batch).square().sum(); }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

TEST(FitLoopOptions, BatchNormalizationUsesAllRanks) {
  testing::as_ranks(2, [] {
    Normalized module;
    Trainer trainer(quiet({.max_epochs = 1, .sync_batchnorm = true}));
    const auto number = [](int64_t i) { return torch::tensor({static_cast<float>(i)}); };
    trainer.fit(module, DataLoader(number, 4, {.batch_size = 2}));
    EXPECT_NEAR(module.norm->running_mean.item<double>(), 0.1 * 1.5, 1e-6);
  });
}

TEST(FitLoopOptions, MoreEpochsContinueARunThatHasEnded) {
  CountingModule module(4);
  Trainer trainer(quiet({.max_epochs = 2}));
  trainer.fit(module);
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 8u);
  trainer.set_max_epochs(3);
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 12u);
  EXPECT_EQ(testing::thrown_id([&] { trainer.set_max_epochs(-2); }), "MU440");
}

struct Losses : Callback {
  std::vector<double> seen;
  void on_train_batch_end(Trainer&, TrainerModule&, const StepOutput& output, const BatchView&, BatchPlace) override {
    seen.push_back(output.loss.item<double>());
  }
};

TEST(FitLoopOptions, HooksSeeTheLossDividedByTheWindow) {
  const auto losses = std::make_shared<Losses>();
  CountingModule module(4);
  module.make_optimizers = [](CountingModule& m) -> Optimizers { return torch::optim::SGD(m.parameters(), 0.0); };
  Trainer(quiet({.accumulate_grad_batches = 2, .callbacks = {losses}, .max_epochs = 1})).fit(module);
  EXPECT_EQ(losses->seen, (std::vector<double>{0, 0.5, 1, 1.5}));
}

TEST(FitLoopOptions, StepsAreEstimatedForSchedules) {
  const auto estimate = [](TrainerOptions options) {
    CountingModule module(10);
    std::optional<int64_t> steps = -1;
    module.make_optimizers = [&](CountingModule& m) -> Optimizers {
      steps = m.trainer().estimated_stepping_batches();
      return torch::optim::SGD(m.parameters(), 0.1);
    };
    module.on_batch = [](CountingModule& m) { m.trainer().stop(); };
    Trainer(quiet(options)).fit(module);
    EXPECT_EQ(module.train_loads, 1);
    return steps;
  };
  EXPECT_EQ(estimate({.max_epochs = 3}), 30);
  EXPECT_EQ(estimate({.accumulate_grad_batches = 3, .max_epochs = 3}), 12);
  EXPECT_EQ(estimate({.max_steps = 5}), 5);
  EXPECT_EQ(estimate({.max_epochs = -1}), std::nullopt);
  EXPECT_EQ(estimate({.limit_train_batches = 4, .max_epochs = 3}), 12);
  EXPECT_EQ(estimate({.max_epochs = 3, .max_steps = 7}), 7);
  Trainer idle(quiet({}));
  EXPECT_EQ(testing::thrown_id([&] { idle.estimated_stepping_batches(); }), "MU446");
}

/// Sets a variable while it lives.
struct Variable {
  Variable(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { unsetenv(name); }
  const char* name;
};

TEST(FitLoopOptions, RequestsOfTheLauncherReachTheLoops) {
  const Variable epochs("MUSTER_TRAINER_MAX_EPOCHS", "2"), window("MUSTER_GRADIENT_ACCUMULATION_NUM_STEPS", "2");
  CountingModule module(4);
  Trainer trainer(quiet({}));
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 8u);
  EXPECT_EQ(trainer.global_step(), 4);
  EXPECT_EQ(trainer.options().accumulate_grad_batches, 2);
  EXPECT_EQ(testing::thrown_id([] { Trainer(quiet({.max_epochs = 3})); }), "MU171");
}

}  // namespace
}  // namespace muster::fit_loop_options
