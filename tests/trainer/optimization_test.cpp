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

using MakeOptimizer = std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// Calls its closure so many times, and makes a step of SGD after each.
struct Repeating : torch::optim::SGD {
  Repeating(std::vector<torch::Tensor> parameters, int times) : SGD(std::move(parameters), 0.1), times(times) {}
  int times;
  torch::Tensor step(LossClosure closure) override {
    torch::Tensor loss;
    if (!closure) return SGD::step(nullptr);
    for (int i = 0; i < times; ++i) {
      {
        const torch::AutoGradMode with_grad(true);
        loss = closure();
      }
      SGD::step(nullptr);
    }
    return loss;
  }
};

MakeOptimizer lbfgs(const std::optional<std::string>& line_search = std::nullopt) {
  return [=](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::LBFGS>(
        std::move(parameters), torch::optim::LBFGSOptions(0.3).max_iter(4).line_search_fn(line_search));
  };
}
MakeOptimizer repeating(int times) {
  return
      [=](std::vector<torch::Tensor> parameters) { return std::make_shared<Repeating>(std::move(parameters), times); };
}

torch::Tensor first_weights() { return torch::linspace(0.1, 0.4, 4); }
torch::Tensor distance(const torch::Tensor& w, const torch::Tensor& batch) {
  return (torch::tanh(w * 3) * (batch + 1) - torch::linspace(-1, 1, 4)).square().mean();
}

/// Fits the weights, by an optimizer that may call its closure as often as it wants.
struct Fitted : CountingModule {
  explicit Fitted(MakeOptimizer make) : CountingModule(3), make(std::move(make)) {}
  MakeOptimizer make;
  torch::Tensor v = register_parameter("v", first_weights());
  int64_t evaluations = 0, before_steps = 0;
  torch::Tensor training_step(torch::Tensor& batch, int64_t) { return ++evaluations, distance(v, batch); }
  void on_before_optimizer_step(ModuleOptimizer&) override { ++before_steps; }
  Optimizers configure_optimizers() override { return make({v}); }
};

struct FittedByHand : Fitted {
  explicit FittedByHand(MakeOptimizer make) : Fitted(std::move(make)) { automatic_optimization = false; }
  void training_step(torch::Tensor& batch, int64_t) {
    auto [optimizer] = optimizers<1>();
    optimizer.step([&, optimizer = optimizer] {
      optimizer.zero_grad();
      const auto loss = Fitted::training_step(batch, 0);
      manual_backward(loss);
      return loss;
    });
  }
};

/// What LibTorch's own loop makes of the weights; `clip`: the largest value of a gradient.
torch::Tensor fitted_without_trainer(const MakeOptimizer& make, const std::vector<torch::Tensor>& batches,
                                     double clip = 0) {
  const auto w = first_weights().requires_grad_();
  const auto optimizer = make({w});
  for (const auto& batch : batches)
    optimizer->step([&] {
      optimizer->zero_grad();
      const auto loss = distance(w, batch);
      loss.backward();
      if (clip > 0) w.mutable_grad().clamp_(-clip, clip);
      return loss;
    });
  return w.detach();
}

std::vector<torch::Tensor> three_batches() {
  return {torch::tensor({{0.f}}), torch::tensor({{1.f}}), torch::tensor({{2.f}})};
}

template <class Module>
void expect_fitted(const MakeOptimizer& make) {
  Module module(make);
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module);
  EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(make, three_batches()))) << module.v;
  EXPECT_FALSE(torch::equal(module.v, first_weights()));
  EXPECT_EQ(module.before_steps, module.evaluations);
  EXPECT_EQ(trainer.global_step(), 3);
}

TEST(Optimization, AnOptimizerCallsItsClosureAsOftenAsItWants) {
  for (const auto& make : {lbfgs(), lbfgs("strong_wolfe"), repeating(1), repeating(3)}) {
    expect_fitted<Fitted>(make);
    expect_fitted<FittedByHand>(make);
  }
  Fitted searched(lbfgs());
  Trainer(quiet({.max_epochs = 1})).fit(searched);
  EXPECT_GT(searched.evaluations, 3);
}

TEST(Optimization, EachCallOfAClosureClips) {
  constexpr double kMost = 0.01;
  Fitted module(lbfgs());
  Trainer(quiet({.gradient_clip_algorithm = "value", .gradient_clip_val = kMost, .max_epochs = 1})).fit(module);
  EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(lbfgs(), three_batches(), kMost))) << module.v;
}

TEST(Optimization, AClosureThatIsNotCalledIsRefused) {  // MU590
  Fitted module(repeating(0));
  const auto message = testing::thrown([&] { Trainer(quiet({.max_epochs = 1})).fit(module); });
  EXPECT_EQ(message.rfind("MU590: ", 0), 0U) << message;
  EXPECT_NE(message.find("Repeating::step()"), message.npos) << message;
}

TEST(Optimization, AClosureIsCalledOnceInAWindow) {  // MU591
  const auto fit = [](const MakeOptimizer& make) {
    Fitted module(make);
    return testing::thrown_id([&] { Trainer(quiet({.accumulate_grad_batches = 2, .max_epochs = 1})).fit(module); });
  };
  EXPECT_EQ(fit(lbfgs()), "MU591");
  EXPECT_EQ(fit(repeating(2)), "MU591");
  EXPECT_EQ(fit(repeating(1)), "no error");
}

TEST(Optimization, UnderLossScalingNoOptimizerCallsItsClosureAgain) {  // MU146
  const auto options = quiet({.grad_scaler = {.init_scale = 1024}, .max_epochs = 1, .precision = "16-mixed"});
  Fitted searched(lbfgs()), stepped(repeating(3)), once(repeating(1));
  EXPECT_EQ(testing::thrown_id([&] { Trainer(options).fit(searched); }), "MU146");
  Trainer(options).fit(stepped);
  Trainer(options).fit(once);
  EXPECT_EQ(stepped.evaluations, 3);
  EXPECT_TRUE(torch::equal(stepped.v, once.v));
}

TEST(Optimization, AClosureWithoutLossUpdatesNothing) {
  struct Missing : Fitted {
    using Fitted::Fitted;
    std::optional<torch::Tensor> training_step(torch::Tensor& batch, int64_t batch_idx) {
      if (batch_idx == 1) return std::nullopt;
      return Fitted::training_step(batch, batch_idx);
    }
  };
  for (const auto& make : {lbfgs(), repeating(2)}) {
    Missing module(make);
    Trainer trainer(quiet({.max_epochs = 1}));
    trainer.fit(module);
    auto batches = three_batches();
    batches.erase(batches.begin() + 1);
    EXPECT_TRUE(torch::equal(module.v, fitted_without_trainer(make, batches))) << module.v;
    EXPECT_EQ(trainer.global_step(), 2);
  }
}

TEST(Optimization, RanksSearchTogether) {  // MU134
  testing::as_ranks(2, [] {
    // The mean of both ranks' losses, in one process.
    const auto w = first_weights().requires_grad_();
    const auto optimizer = lbfgs()({w});
    for (float i = 0; i < 4; i += 2)
      optimizer->step([&] {
        optimizer->zero_grad();
        const auto loss = (distance(w, torch::tensor({{i}})) + distance(w, torch::tensor({{i + 1}}))) / 2;
        loss.backward();
        return loss;
      });
    Fitted module(lbfgs());
    module.batches = 4;
    const Trainer keeps_the_meeting_place(quiet({}));
    Trainer trainer(quiet({.max_epochs = 1, .strategy = "ddp"}));
    trainer.fit(module);
    EXPECT_TRUE(torch::allclose(module.v, w, 1e-4, 1e-5)) << module.v << w;
    EXPECT_GT(module.evaluations, 2);
    for (const auto* strategy : {"zero1", "zero2", "fsdp"}) {
      Fitted sharded(lbfgs());
      Trainer by(quiet({.max_epochs = 1, .strategy = Strategy::parse(strategy)}));
      EXPECT_EQ(testing::thrown_id([&] { by.fit(sharded); }), "MU134") << strategy;
    }
  });
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
