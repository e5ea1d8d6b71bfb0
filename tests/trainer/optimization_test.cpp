#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet;
using Rates = std::vector<double>;

TEST(Optimization, AWindowStepsOnceAndAtTheEndOfTheEpoch) {
  CountingModule module(5);
  Trainer trainer(
      quiet({.accumulate_grad_batches = 2, .gradient_weighting = GradientWeighting::fixed, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 3);
  EXPECT_NEAR(module.w.item<double>(), 0.5, 1e-6);  // 1 - 0.1 * (0.5 + 2.5 + 2)
  CountingModule mean(5);
  Trainer(quiet({.accumulate_grad_batches = 2, .max_epochs = 1})).fit(mean);
  EXPECT_NEAR(mean.w.item<double>(), 0.3, 1e-6);  // 1 - 0.1 * (0.5 + 2.5 + 4): the last batch is a window of its own
}

TEST(Optimization, ALimitEndsTheLastWindow) {
  CountingModule module(5);
  Trainer trainer(quiet({.accumulate_grad_batches = 2, .limit_train_batches = 3, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_NEAR(module.w.item<double>(), 0.75, 1e-6);  // 1 - 0.1 * (0.5 + 2)
}

TEST(Optimization, GradientsAreClippedBeforeTheStep) {
  const auto after = [](const TrainerOptions& options) {
    CountingModule module(5);
    Trainer(quiet(options)).fit(module);
    return module.w.item<double>();
  };
  EXPECT_NEAR(after({.max_epochs = 1}), 0.0, 1e-6);
  EXPECT_NEAR(after({.gradient_clip_val = 0.5, .max_epochs = 1}), 0.8, 1e-5);
  EXPECT_NEAR(after({.gradient_clip_algorithm = "value", .gradient_clip_val = 0.3, .max_epochs = 1}), 0.88, 1e-6);
}

TEST(Optimization, HooksBeforeTheStepSeeUnscaledGradients) {
  struct Watching : CountingModule {
    std::vector<double> scaled = {}, before_step = {};
    void on_after_backward() override { scaled.push_back(w.grad().item<double>()); }
    void on_before_optimizer_step(ModuleOptimizer&) override { before_step.push_back(w.grad().item<double>()); }
  } module;
  Trainer(quiet({.grad_scaler = {.init_scale = 1024}, .max_epochs = 1, .precision = "16-mixed"})).fit(module);
  EXPECT_EQ(module.scaled, (std::vector<double>{0, 1024, 2048, 3072, 4096}));
  EXPECT_EQ(module.before_step, (std::vector<double>{0, 1, 2, 3, 4}));
}

struct Sparse : CountingModule {
  std::optional<torch::Tensor> training_step(torch::Tensor& batch, int64_t batch_idx) {
    if (batch_idx % 2 == 1) return std::nullopt;
    return CountingModule::training_step(batch, batch_idx);
  }
};

TEST(Optimization, ABatchWithoutLossIsLeftOut) {
  Sparse module;
  Trainer trainer(quiet({.limit_train_batches = 4, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_NEAR(module.w.item<double>(), 0.8, 1e-6);
}

Rates rates(int64_t batches, int accumulate, LRSchedulerConfig config, int64_t epochs = 1) {
  CountingModule module(batches);
  module.make_optimizers = [&](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 1.0);
    config.scheduler = StepLR(*sgd, {.gamma = 0.5, .step_size = 1});
    return {sgd, config};
  };
  Trainer(quiet({.accumulate_grad_batches = accumulate, .max_epochs = epochs})).fit(module);
  return module.rates;
}

TEST(Optimization, SchedulesCountUpdatesOrEpochs) {
  EXPECT_EQ(rates(4, 1, {.interval = "step"}), (Rates{1, .5, .25, .125}));
  EXPECT_EQ(rates(6, 1, {.frequency = 2, .interval = "step"}), (Rates{1, 1, .5, .5, .25, .25}));
  EXPECT_EQ(rates(5, 2, {.interval = "step"}), (Rates{1, 1, .5, .5, .25}));
  EXPECT_EQ(rates(8, 2, {.frequency = 2, .interval = "step"}), (Rates{1, 1, 1, 1, .5, .5, .5, .5}));
  EXPECT_EQ(rates(1, 1, {.frequency = 2}, 5), (Rates{1, 1, .5, .5, .25}));
}

struct Constant : CountingModule {
  explicit Constant(bool logs) : CountingModule(1), logs(logs) {}
  bool logs;
  void validation_step(torch::Tensor&, int64_t) {
    if (logs) log("v", 1.0);
  }
};

TEST(Optimization, APlateauFollowsItsMetric) {  // MU449
  const auto fit = [](bool logs, bool strict) {
    Constant module(logs);
    module.make_optimizers = [&](CountingModule& m) -> Optimizers {
      auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 1.0);
      return {sgd, LRSchedulerConfig{
                       .monitor = "v", .scheduler = ReduceLROnPlateau(*sgd, {.patience = 1}), .strict = strict}};
    };
    Trainer(quiet({.max_epochs = 6})).fit(module);
    return module.rates;
  };
  const Rates wanted = {1, 1, 1, .1, .1, .01};
  const auto seen = fit(true, true);
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(seen[i], wanted[i], 1e-12) << i;
  EXPECT_EQ(testing::thrown_id([&] { fit(false, true); }), "MU449");
  EXPECT_EQ(fit(false, false), Rates(6, 1.0));
}

TEST(Optimization, AutomaticModeTakesOneOptimizerOrNone) {  // MU443
  CountingModule two;
  two.make_optimizers = [](CountingModule& m) -> Optimizers {
    return {torch::optim::SGD(m.parameters(), 0.1), torch::optim::SGD(m.parameters(), 0.1)};
  };
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).fit(two); }), "MU443");
  CountingModule none;
  none.make_optimizers = [](CountingModule&) { return Optimizers(); };
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(none);
  EXPECT_EQ(trainer.global_step(), 0);
  EXPECT_EQ(none.trained.size(), 5u);
  CountingModule early;
  early.make_optimizers = [](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), 0.1);
    return {std::make_shared<StepLR>(*sgd, StepLROptions{.step_size = 1}), sgd};
  };
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).fit(early); }), "MU443");
}

struct Manual : TrainerModule {
  Manual() { automatic_optimization = false; }
  torch::Tensor a = register_parameter("a", torch::ones({})), b = register_parameter("b", torch::ones({}));
  void training_step(torch::Tensor& batch, int64_t) {
    auto [first, second] = optimizers<2>();
    {
      auto only = toggled_optimizer(first);
      EXPECT_FALSE(b.requires_grad());
      first.zero_grad();
      const auto before = b.grad().defined() ? b.grad().clone() : torch::Tensor();
      manual_backward(a * b * (batch.sum() + 1));
      EXPECT_EQ(b.grad().defined(), before.defined());
      EXPECT_TRUE(!before.defined() || b.grad().equal(before));
      first.step();
    }
    EXPECT_TRUE(b.requires_grad());
    second.step([&] {
      second.zero_grad();
      auto loss = b * 2;
      manual_backward(loss);
      return loss;
    });
  }
  Optimizers configure_optimizers() override { return {torch::optim::SGD({a}, 0.1), torch::optim::SGD({b}, 0.1)}; }
};

TEST(Optimization, AModuleStepsItsOptimizersItself) {
  Manual module;
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module, CountingModule::numbers(3));
  EXPECT_EQ(trainer.global_step(), 6);
  EXPECT_NEAR(module.b.item<double>(), 0.4, 1e-6);
  EXPECT_NEAR(module.a.item<double>(), 1 - 0.1 * (1.0 * 1 + 0.8 * 2 + 0.6 * 3), 1e-6);
}

struct WithoutClosure : CountingModule {
  void optimizer_step(int64_t, int64_t, ModuleOptimizer& optimizer, const ModuleOptimizer::Closure&) override {
    optimizer.step();
  }
};
struct ByHand : CountingModule {
  torch::Tensor training_step(torch::Tensor&, int64_t) {
    manual_backward(w * 2);
    return w * 2;
  }
};

TEST(Optimization, AModuleAccumulatesWithoutCommunication) {
  struct Manual : CountingModule {
    Manual() : CountingModule(4) { automatic_optimization = false; }
    std::vector<double> gradients = {};
    void training_step(torch::Tensor& batch, int64_t) {
      {
        const auto local = no_sync();
        manual_backward(w * batch.sum());
      }
      gradients.push_back(w.grad().item<double>());
      manual_backward(w * 10);
      gradients.push_back(w.grad().item<double>());
      optimizers()[0].step();
      optimizers()[0].zero_grad();
    }
  };
  testing::as_ranks(2, [] {
    Manual module;
    Trainer trainer(quiet({.max_epochs = 1, .strategy = "ddp"}));
    trainer.fit(module);
    const auto rank = trainer.runtime().rank();
    EXPECT_EQ(module.gradients, (std::vector<double>{0.0 + rank, 10.5, 2.0 + rank, 12.5}));
    EXPECT_NEAR(module.w.item<double>(), 1 - 0.1 * (10.5 + 12.5), 1e-6);
  });
}

TEST(Optimization, AutomaticModeRefusesStepsByHand) {  // MU448
  WithoutClosure stepped;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).fit(stepped); }), "MU448");
  ByHand backward;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).fit(backward); }), "MU448");
}

/// What fit() says of a schedule, if it makes 5 steps in each of 2 epochs.
std::string said_of(const std::function<LRSchedulerConfig(torch::optim::Optimizer&)>& schedule,
                    TrainerOptions options = {.max_epochs = 2}) {
  CountingModule module(5);
  module.make_optimizers = [&](CountingModule& m) -> Optimizers {
    auto sgd = std::make_shared<torch::optim::SGD>(m.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    return {sgd, schedule(*sgd)};
  };
  ::testing::internal::CaptureStderr();
  Trainer(quiet(std::move(options))).fit(module);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Optimization, AScheduleOfAnotherLengthIsNamed) {
  const auto cycle = [](int64_t total, ScheduleInterval interval = "step", int64_t frequency = 1) {
    return [=](torch::optim::Optimizer& sgd) {
      return LRSchedulerConfig{.frequency = frequency,
                               .interval = interval,
                               .scheduler = OneCycleLR(sgd, {.max_lr = 0.1, .total_steps = total})};
    };
  };
  const std::string named = "OneCycleLR was made for 20 steps, and this training has ";
  EXPECT_NE(said_of(cycle(20)).find(named + "10;"), std::string::npos);
  EXPECT_NE(said_of(cycle(20, "epoch")).find(named + "2;"), std::string::npos);
  EXPECT_NE(said_of(cycle(20), {.max_steps = 7}).find(named + "7;"), std::string::npos);
  for (const auto& quietly :
       {said_of(cycle(10)), said_of(cycle(2, "epoch")), said_of(cycle(5, "step", 2)),
        said_of(cycle(20), {.fast_dev_run = 1}), said_of(cycle(6), {.accumulate_grad_batches = 2, .max_epochs = 2}),
        said_of([](torch::optim::Optimizer& sgd) {
          return LRSchedulerConfig{.interval = "step", .scheduler = LinearLR(sgd, {.total_iters = 3})};
        })})
    EXPECT_EQ(quietly.find("was made for"), std::string::npos) << quietly;
}

}  // namespace
}  // namespace muster
