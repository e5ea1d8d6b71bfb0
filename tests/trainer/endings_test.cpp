// What ends runs and epochs: loaders without batches or without a length, limits of nothing, windows, schedules.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/data/combined.h"
#include "muster/data/stream.h"
#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::endings {
namespace {

using testing::CountingModule, testing::quiet;
using Indices = std::vector<int64_t>;

/// Counts up, and does not know how far.
struct Counter {
  int64_t end;
  int64_t at = 0;
  std::optional<torch::Tensor> next() {
    if (at >= end) return std::nullopt;
    return torch::tensor({static_cast<float>(at++)});
  }
  void start(int64_t) { at = 0; }
};
auto unknown(int64_t count) { return DataLoader(Counter{count}); }

struct Validated : CountingModule {
  using CountingModule::CountingModule;
  torch::Tensor training_step(torch::Tensor& batch, int64_t i) { return CountingModule::training_step(batch, i); }
  torch::Tensor training_step(std::tuple<torch::Tensor&, torch::Tensor&>& batch, int64_t i) {
    return CountingModule::training_step(std::get<0>(batch), i);
  }
  torch::Tensor training_step(std::tuple<torch::Tensor*, torch::Tensor*>& batch, int64_t i) {
    auto* first = std::get<0>(batch) ? std::get<0>(batch) : std::get<1>(batch);
    return CountingModule::training_step(*first, i);
  }
};

template <class L>
std::tuple<Indices, int64_t, std::vector<double>> fitted(const L& loaders, int accumulate) {
  Validated module;
  module.make_optimizers = [](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 0.1);
    return {sgd, StepLR(*sgd, {.gamma = 0.5, .step_size = 1})};
  };
  Trainer trainer(quiet({.accumulate_grad_batches = accumulate, .max_epochs = 2}));
  trainer.fit(module, loaders, CountingModule::numbers(1));
  return {module.validated_after, trainer.global_step(), module.rates};
}

TEST(Endings, ALoaderOfUnknownLengthHasALastBatchToo) {
  const auto expect = [](const char* what, const auto& loaders, int64_t batches) {
    const auto [validated, steps, rates] = fitted(loaders, 2);
    EXPECT_EQ(validated, (Indices{batches, 2 * batches})) << what;
    EXPECT_EQ(steps, 2 * ((batches + 1) / 2)) << what;
    std::vector<double> wanted(static_cast<size_t>(2 * batches), 0.1);
    for (auto i = static_cast<size_t>(batches); i < wanted.size(); ++i) wanted[i] = 0.05;
    EXPECT_EQ(rates, wanted) << what;
  };
  expect("one", unknown(3), 3);
  expect("cycled", combine(CombineMode::max_size_cycle, unknown(3), unknown(5)), 5);
  expect("cycled, one known", combine(CombineMode::max_size_cycle, CountingModule::numbers(2), unknown(5)), 5);
  expect("shortest", combine(CombineMode::min_size, unknown(3), unknown(5)), 3);
  expect("shortest, equal", combine(CombineMode::min_size, unknown(3), unknown(3)), 3);
  expect("longest", combine_longest(unknown(3), unknown(5)), 5);
  expect("in turn", in_sequence(unknown(3), unknown(2)), 5);
}

struct SavesAtTheEnd : Callback {
  std::filesystem::path folder = {};
  int64_t after = 0;
  void on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                          BatchPlace place) override {
    if (trainer.current_epoch() == 0 && place.batch_idx + 1 == after) trainer.save_checkpoint(folder);
  }
};

TEST(Endings, OfUnknownLengthAlsoAfterResuming) {
  const auto expect = [](const char* what, const auto& loaders, int64_t batches) {
    for (int64_t after = 1; after <= batches; ++after) {
      const testing::TemporaryFolder folder;
      const auto saves = std::make_shared<SavesAtTheEnd>();
      saves->folder = folder.path() / "saved";
      saves->after = after;
      Validated whole;
      Trainer(quiet({.callbacks = {saves}, .max_epochs = 2})).fit(whole, loaders, CountingModule::numbers(1));
      Validated resumed;
      Trainer trainer(quiet({.max_epochs = 2}));
      trainer.fit(resumed, loaders, CountingModule::numbers(1), {.ckpt_path = saves->folder.string()});
      EXPECT_EQ(resumed.trained, Indices(whole.trained.begin() + after, whole.trained.end())) << what << after;
      EXPECT_EQ(resumed.w.item<float>(), whole.w.item<float>()) << what << after;
    }
  };
  expect("one", unknown(3), 3);
  expect("cycled", combine(CombineMode::max_size_cycle, unknown(2), unknown(3)), 3);
  expect("shortest", combine(CombineMode::min_size, unknown(2), unknown(3)), 2);
  expect("longest", combine_longest(unknown(2), unknown(3)), 3);
}

TEST(Endings, WithoutBatchesNothingIsTrainedForEver) {  // MU437
  const auto fit = [](const auto& loader, TrainerOptions options) {
    Validated module;
    Trainer trainer(quiet(std::move(options)));
    trainer.fit(module, loader);
    return std::tuple(std::ssize(module.trained), trainer.global_step());
  };
  const std::tuple<int64_t, int64_t> nothing = {0, 0};
  EXPECT_EQ(fit(CountingModule::numbers(0), {}), nothing);
  EXPECT_EQ(fit(CountingModule::numbers(0), {.max_steps = 5}), nothing);
  EXPECT_EQ(fit(combine(CombineMode::max_size_cycle, CountingModule::numbers(0), CountingModule::numbers(2)),
                {.max_steps = 5}),
            nothing);
  EXPECT_EQ(fit(unknown(0), {.max_epochs = 3}), nothing);
  EXPECT_EQ(testing::thrown_id([&] { fit(unknown(0), {.max_steps = 5}); }), "MU437");
  EXPECT_EQ(fit(CountingModule::numbers(3), {.max_steps = 0}), nothing);
  EXPECT_EQ(fit(CountingModule::numbers(3), {.max_epochs = -1, .max_steps = 4}), (std::tuple<int64_t, int64_t>{4, 4}));
}

TEST(Endings, AnEmptyLoaderOfAnEvaluationGivesNothing) {
  CountingModule module;
  Trainer trainer(quiet({.max_epochs = 1}));
  const auto metrics = trainer.validate(module, std::vector{CountingModule::numbers(0), CountingModule::numbers(1)});
  ASSERT_EQ(metrics.size(), 2U);
  EXPECT_TRUE(metrics[0].empty());
  trainer.fit(module, CountingModule::numbers(2), CountingModule::numbers(0));
  EXPECT_EQ(trainer.global_step(), 2);
}

TEST(Endings, AnIntervalOfNothingIsRefused) {  // MU440
  EXPECT_EQ(testing::thrown_id([] { Trainer trainer({.val_check_interval = 0}); }), "MU440");
  EXPECT_EQ(testing::thrown_id([] { Trainer trainer({.val_check_interval = 0.0}); }), "MU440");
}

/// The losses are w * i, as of a CountingModule; clipping keeps the norm of a window's mean gradient.
TEST(Endings, WindowsOfFourInTenBatchesStepThreeTimes) {
  struct Clipped : CountingModule {
    Clipped() : CountingModule(10) {}
    Indices stepped_at = {};
    std::vector<double> norms = {};
    void on_before_optimizer_step(ModuleOptimizer& optimizer) override {
      stepped_at.push_back(trained.back());
      norms.push_back(optimizer.param_groups()[0].params()[0].grad().item<double>());
    }
  };
  Clipped module;
  module.make_optimizers = [](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 1.0);
    return {sgd, LRSchedulerConfig{.interval = "step", .scheduler = StepLR(*sgd, {.gamma = 0.5, .step_size = 1})}};
  };
  Trainer trainer(quiet({.accumulate_grad_batches = 4, .gradient_clip_val = 2.0, .max_epochs = 2}));
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 6);
  EXPECT_EQ(module.stepped_at, (Indices{3, 7, 9, 3, 7, 9}));
  const std::vector<double> means = {1.5, 5.5, 8.5, 1.5, 5.5, 8.5};
  double w = 1, rate = 1;
  for (size_t i = 0; i < means.size(); ++i, rate /= 2) {
    EXPECT_NEAR(module.norms.at(i), means[i], 1e-5);
    w -= rate * std::min(means[i], 2.0);
  }
  EXPECT_NEAR(module.w.item<double>(), w, 1e-5);
}

TEST(Endings, EstimatesKnowAccumulationByEpoch) {
  CountingModule module(10);
  std::optional<int64_t> estimated;
  module.make_optimizers = [&](CountingModule& m) -> Optimizers {
    estimated = m.trainer().estimated_stepping_batches();
    return torch::optim::SGD(m.parameters(), 0.1);
  };
  const auto windows = std::make_shared<GradientAccumulationScheduler>(std::map<int64_t, int>{{1, 4}, {2, 10}});
  Trainer trainer(quiet({.callbacks = {windows}, .max_epochs = 3}));
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 10 + 3 + 1);
  EXPECT_EQ(estimated, trainer.global_step());
}

TEST(Endings, ManualOptimizationRefusesWhatItWouldIgnore) {  // MU438
  struct Manual : CountingModule {
    Manual() { automatic_optimization = false; }
    torch::Tensor training_step(torch::Tensor& batch, int64_t i) { return CountingModule::training_step(batch, i); }
  };
  for (const auto& options : {TrainerOptions{.accumulate_grad_batches = 2}, TrainerOptions{.gradient_clip_val = 1.0}}) {
    Manual module;
    EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet(options)).fit(module); }), "MU438");
  }
}

/// A batch without loss makes no update, and no step of a schedule.
TEST(Endings, APlateauByStepsLooksOncePerUpdate) {
  struct Sparse : CountingModule {
    Sparse() : CountingModule(6) {}
    std::optional<torch::Tensor> training_step(torch::Tensor& batch, int64_t i) {
      log("v", 1.0);
      auto loss = CountingModule::training_step(batch, i);
      return i % 2 == 0 ? std::optional(loss) : std::nullopt;
    }
  };
  Sparse module;
  module.make_optimizers = [](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 1.0);
    return {sgd, LRSchedulerConfig{.interval = "step",
                                   .monitor = "v",
                                   .scheduler = ReduceLROnPlateau(*sgd, {.factor = 0.5, .patience = 0})}};
  };
  Trainer(quiet({.max_epochs = 1})).fit(module);
  EXPECT_EQ(module.rates, (std::vector<double>{1, 1, 1, 0.5, 0.5, 0.25}));
}

/// One weight under two names, with momentum and decay, which would act twice.
struct Tied : TrainerModule {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 3));
  torch::Tensor tied = register_parameter("tied", first->weight);
  torch::Tensor loss(const torch::Tensor& x) { return torch::tanh(first(x)).matmul(tied).square().mean(); }
  torch::Tensor training_step(torch::Tensor& batch, int64_t) {
    return loss(batch * torch::tensor({1.0F, -0.5F, 0.25F}));
  }
  Optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  }
};

TEST(Endings, ATiedWeightIsUpdatedAndClippedOnce) {
  torch::manual_seed(2);
  Tied plain;
  torch::optim::SGD sgd({plain.first->weight, plain.first->bias},
                        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  for (int i = 0; i < 4; ++i) {
    sgd.zero_grad();
    plain.loss(torch::full({1, 1}, static_cast<float>(i)) * torch::tensor({1.0F, -0.5F, 0.25F})).backward();
    torch::nn::utils::clip_grad_norm_(sgd.param_groups()[0].params(), 0.05);
    sgd.step();
  }
  torch::manual_seed(2);
  Tied module;
  Trainer(quiet({.gradient_clip_val = 0.05, .max_epochs = 1})).fit(module, CountingModule::numbers(4));
  EXPECT_TRUE(module.first->weight.allclose(plain.first->weight, 1e-5, 1e-7))
      << module.first->weight << plain.first->weight;
  EXPECT_TRUE(module.tied.is_same(module.first->weight) || module.tied.data_ptr() == module.first->weight.data_ptr());
}

}  // namespace
}  // namespace muster::endings
