#include "muster/schedule/schedulers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "schedule/schedule_cases.h"

namespace muster::schedule {
namespace {

using testing::scheduled_optimizer;

std::string refused(const Schedule& schedule) {
  const auto sgd = scheduled_optimizer("sgd");
  return muster::testing::thrown([&] { make_scheduler(*sgd, schedule); });
}

TEST(Schedulers, GoOnExactlyAfterALoad) {
  for (const auto& [name, kind, schedule] : testing::schedule_cases()) {
    const auto through = scheduled_optimizer(kind), second = scheduled_optimizer(kind);
    const auto whole = make_scheduler(*through, schedule), resumed = make_scheduler(*second, schedule);
    for (int step = 0; step < 137; ++step) whole->step();
    resumed->load_state_dict(whole->state_dict());
    EXPECT_EQ(resumed->get_last_lr(), whole->get_last_lr()) << name;
    for (int step = 137; step < testing::kScheduleSteps; ++step) {
      ASSERT_EQ(testing::rates_and_momenta(*second), testing::rates_and_momenta(*through)) << name << ", step " << step;
      whole->step();
      resumed->step();
    }
    EXPECT_EQ(resumed->state_dict(), whole->state_dict()) << name;
  }
}

TEST(Schedulers, PlateauGoesOnExactlyAfterALoad) {
  for (const auto& [name, options] : testing::plateau_cases()) {
    const auto through = scheduled_optimizer("sgd"), second = scheduled_optimizer("sgd");
    ReduceLROnPlateau whole(*through, options), resumed(*second, options);
    for (int step = 0; step < 78; ++step) whole.step(testing::plateau_metric(step));
    resumed.load_state_dict(whole.state_dict());
    for (int step = 78; step < testing::kScheduleSteps; ++step) {
      ASSERT_EQ(testing::rates_and_momenta(*second), testing::rates_and_momenta(*through)) << name << ", step " << step;
      whole.step(testing::plateau_metric(step));
      resumed.step(testing::plateau_metric(step));
    }
  }
}

TEST(Schedulers, LastRatesAreTheOptimizers) {
  const auto adam = scheduled_optimizer("adam");
  OneCycleLR schedule(*adam, {.max_lr = 0.2, .total_steps = 10});
  for (int step = 0; step < 5; ++step) schedule.step();
  EXPECT_EQ(schedule.get_last_lr()[1], adam->param_groups()[1].options().get_lr());
  EXPECT_EQ(schedule.last_epoch(), 5);
  EXPECT_EQ(&schedule.optimizer(), adam.get());
}

TEST(Schedulers, OneCycleEndsAndSaysSo) {
  const auto sgd = scheduled_optimizer("sgd");
  OneCycleLR schedule(*sgd, {.anneal_strategy = AnnealStrategy::linear, .max_lr = 0.2, .total_steps = 7});
  for (int step = 0; step < 6; ++step) schedule.step();
  const auto last = schedule.get_last_lr();
  EXPECT_NEAR(last[0], 0.2 / 25 / 1e4, 1e-15);
  schedule.step();  // after the seventh update: where Python's goes on below zero
  EXPECT_EQ(schedule.get_last_lr(), last);
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.step(); }), "MU136");
}

TEST(Schedulers, RefuseImpossibleOptions) {
  EXPECT_EQ(refused(StepLROptions{}).substr(0, 5), "MU135");
  EXPECT_NE(refused(StepLROptions{}).find("step_size is 0"), std::string::npos);
  for (const Schedule& schedule : std::vector<Schedule>{
           LambdaLROptions{},
           MultiplicativeLROptions{std::function<double(int64_t)>()},
           MultiStepLROptions{},
           ConstantLROptions{.factor = 2},
           LinearLROptions{.start_factor = 0},
           LinearLROptions{.end_factor = 2},
           LinearLROptions{.total_iters = 0},
           ExponentialLROptions{},
           PolynomialLROptions{.total_iters = 0},
           CosineAnnealingLROptions{},
           CosineAnnealingWarmRestartsOptions{},
           CosineAnnealingWarmRestartsOptions{.T_0 = 1, .T_mult = 0},
           CyclicLROptions{},
           CyclicLROptions{.base_lr = 0.1},
           CyclicLROptions{.base_lr = {0.1, 0.1, 0.1}, .max_lr = 0.2},
           CyclicLROptions{.base_lr = 0.1, .max_lr = 1.0, .step_size_up = 0},
           OneCycleLROptions{.max_lr = 0.1},
           OneCycleLROptions{.max_lr = 0.1, .pct_start = 2, .total_steps = 9},
           WarmupLROptions{},
           SequentialLROptions{},
           SequentialLROptions{{3}, {StepLROptions{.step_size = 1}}},
           SequentialLROptions{{4, 3}, {ConstantLROptions{}, ConstantLROptions{}, ConstantLROptions{}}},
           ChainedSchedulerOptions{},
           Schedule::Maker([](OptimizerRates) { return std::unique_ptr<LRScheduler>(); })})
    EXPECT_EQ(refused(schedule).substr(0, 5), "MU135") << schedule.options.index();
  const auto sgd = scheduled_optimizer("sgd");
  EXPECT_EQ(muster::testing::thrown_id([&] { ReduceLROnPlateau(*sgd, {.factor = 1.5}); }), "MU135");
}

TEST(Schedulers, RefuseAMomentumThatIsNot) {
  torch::optim::Adagrad adagrad({torch::zeros({1}, torch::requires_grad())}, 0.1);
  EXPECT_EQ(muster::testing::thrown_id([&] { CyclicLR(adagrad, {.base_lr = 0.1, .max_lr = 0.2}); }), "MU135");
  CyclicLR without(adagrad, {.base_lr = 0.1, .cycle_momentum = false, .max_lr = 0.2});
  EXPECT_DOUBLE_EQ(adagrad.param_groups()[0].options().get_lr(), 0.1);
}

TEST(Schedulers, RefuseNewGroupsAndForeignStates) {
  auto sgd = scheduled_optimizer("sgd");
  StepLR schedule(*sgd, {.step_size = 2});
  auto state = schedule.state_dict();
  state.erase("last_epoch");
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.load_state_dict(state); }), "MU138");
  state = schedule.state_dict();
  state["lr"] = {1.0};
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.load_state_dict(state); }), "MU138");
  CosineAnnealingWarmRestarts other(*sgd, {.T_0 = 3});
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.load_state_dict(other.state_dict()); }), "MU138");
  EXPECT_EQ(schedule.get_last_lr(), (std::vector<double>{0.1, 0.04}));
  sgd->add_param_group(torch::optim::OptimizerParamGroup({torch::zeros({1}, torch::requires_grad())}));
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.step(); }), "MU137");
}

TEST(Schedulers, PlateauWantsItsMetric) {
  const auto sgd = scheduled_optimizer("sgd");
  ReduceLROnPlateau schedule(*sgd);
  EXPECT_EQ(muster::testing::thrown_id([&] { schedule.step(); }), "MU139");
}

/// A schedule of the user's own.
class Halving final : public LRScheduler {
 public:
  explicit Halving(OptimizerRates optimizer) : LRScheduler(std::move(optimizer)) { begin(); }

 private:
  double next_lr(size_t group, double) override { return base_lr(group) / (1.0 + static_cast<double>(last_epoch())); }
};

TEST(Schedulers, TakeTheUsersOwn) {
  const auto sgd = scheduled_optimizer("sgd");
  SequentialLR schedule(*sgd,
                        {{2},
                         {WarmupLROptions{.decay = WarmupDecay::constant, .warmup_steps = 2},
                          Schedule::Maker([](OptimizerRates rates) { return std::make_unique<Halving>(rates); })}});
  std::vector<double> rates{schedule.get_last_lr()[0]};
  for (int step = 0; step < 4; ++step) {
    schedule.step();
    rates.push_back(schedule.get_last_lr()[0]);
  }
  EXPECT_EQ(rates, (std::vector<double>{0.0, 0.05, 0.1, 0.05, 0.1 / 3}));
}

TEST(Schedulers, SomeAreMadeForANumberOfSteps) {
  const auto sgd = scheduled_optimizer("sgd");
  const auto total = [&](const Schedule& schedule) { return make_scheduler(*sgd, schedule)->total_steps(); };
  EXPECT_EQ(total(OneCycleLROptions{.max_lr = 0.1, .total_steps = 7}), 7);
  EXPECT_EQ(total(OneCycleLROptions{.epochs = 3, .max_lr = 0.1, .steps_per_epoch = 4}), 12);
  EXPECT_EQ(total(CosineAnnealingLROptions{.T_max = 7}), 7);
  EXPECT_EQ(total(PolynomialLROptions{.total_iters = 7}), 7);
  EXPECT_EQ(total(WarmupLROptions{.decay = WarmupDecay::linear, .total_steps = 7, .warmup_steps = 2}), 7);
  EXPECT_EQ(total(WarmupLROptions{.decay = WarmupDecay::constant, .warmup_steps = 2}), std::nullopt);
  EXPECT_EQ(total(SequentialLROptions{{2}, {LinearLROptions{}, CosineAnnealingLROptions{.T_max = 5}}}), 7);
  EXPECT_EQ(total(SequentialLROptions{{2}, {CosineAnnealingLROptions{.T_max = 5}, StepLROptions{.step_size = 1}}}),
            std::nullopt);
  EXPECT_EQ(total(LinearLROptions{}), std::nullopt);
}

TEST(Schedulers, ComposedSchedulesMayBeParts) {
  const auto sgd = scheduled_optimizer("sgd");
  SequentialLR schedule(
      *sgd,
      {{3},
       {ConstantLROptions{.factor = 0.5, .total_iters = 10},
        ChainedSchedulerOptions{{ExponentialLROptions{.gamma = 0.5}, StepLROptions{.gamma = 0.1, .step_size = 2}}}}});
  for (int step = 0; step < 3; ++step) schedule.step();
  EXPECT_DOUBLE_EQ(schedule.get_last_lr()[0], 0.1);
  schedule.step();
  EXPECT_DOUBLE_EQ(schedule.get_last_lr()[0], 0.05);
  schedule.step();
  EXPECT_DOUBLE_EQ(schedule.get_last_lr()[0], 0.0025);
}

}  // namespace
}  // namespace muster::schedule
