#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::MeasuredModule, testing::quiet;

struct Outcome {
  int64_t epochs, stopped;
  std::string reason;
  double best;
};

Outcome run(std::vector<double> values, EarlyStoppingOptions options, TrainerOptions how = {}, int64_t batches = 1) {
  options.monitor = "v";
  const auto stop = std::make_shared<EarlyStopping>(options);
  how.callbacks = {stop};
  how.max_epochs = 20;
  MeasuredModule module(std::move(values), batches);
  Trainer trainer(quiet(how));
  trainer.fit(module);
  return {trainer.current_epoch(), stop->stopped_epoch(), stop->stopping_reason(), stop->best_score()};
}

void expect(const Outcome& outcome, int64_t epochs, int64_t stopped) {
  EXPECT_EQ(outcome.epochs, epochs);
  EXPECT_EQ(outcome.stopped, stopped);
}

TEST(EarlyStopping, PatienceCountsChecksWithoutImprovement) {
  expect(run({1}, {.patience = 3}), 4, 3);
  expect(run({1}, {.patience = 0}), 2, 1);
  expect(run({1}, {.patience = 1}), 2, 1);
  expect(run({4, 3, 2, 2, 2}, {.patience = 2}), 5, 4);
  expect(run({1}, {.mode = "max", .patience = 2}), 3, 2);
}

TEST(EarlyStopping, AnImprovementIsGreaterThanMinDelta) {
  expect(run({4, 3.5, 3, 2.5}, {.min_delta = 0.5, .patience = 1}), 2, 1);
  const auto outcome = run({4, 3.6, 3.2, 2.8, 2.4, 2.0, 2.0, 2.0}, {.min_delta = 0.5, .patience = 2});
  expect(outcome, 7, 6);
  EXPECT_EQ(outcome.best, 2.4);
}

TEST(EarlyStopping, NumbersThatAreNotFiniteStop) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect(run({3, 2, nan}, {}), 3, 2);
  expect(run({3, 2, nan}, {.check_finite = false, .patience = 3}), 5, 4);
}

TEST(EarlyStopping, ThresholdsStop) {
  expect(run({3, 2, 0.5}, {.stopping_threshold = 1.0}), 3, 2);
  expect(run({3, 2, 9}, {.divergence_threshold = 5.0}), 3, 2);
  EXPECT_NE(run({3, 2, 9}, {.divergence_threshold = 5.0}).reason.find("divergence"), std::string::npos);
}

TEST(EarlyStopping, ThresholdsAreToBePassedNotReached) {
  expect(run({3, 2, 1}, {.stopping_threshold = 1.0}), 6, 5);
  expect(run({3, 2, 5}, {.divergence_threshold = 5.0}), 5, 4);
}

TEST(EarlyStopping, NeitherTheSanityCheckNorAFastRunCounts) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  MeasuredModule module({nan, 1});
  const auto stop = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v", .patience = 3});
  auto options = quiet({.callbacks = {stop}, .max_epochs = 20, .val_check_interval = 1});
  options.num_sanity_val_steps = 1;
  Trainer trainer(options);
  trainer.fit(module);
  EXPECT_EQ(stop->stopped_epoch(), 3);
  EXPECT_EQ(run({nan}, {}, {.fast_dev_run = 1}).reason, "");
}

TEST(EarlyStopping, ItChecksWhereValidationRuns) {
  expect(run({1}, {.patience = 1}, {.check_val_every_n_epoch = 2}), 4, 3);
  expect(run({1}, {.patience = 1}, {.min_epochs = 5}), 5, 4);
  MeasuredModule module({1}, 4);
  const auto stop = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v", .patience = 1});
  Trainer trainer(quiet({.callbacks = {stop}, .max_epochs = 9, .val_check_interval = 0.5}));
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 4u);
}

TEST(EarlyStopping, AMissingMetricIsAnErrorUnlessAllowed) {  // MU449
  const auto fit = [](bool strict) {
    const auto stop = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "lost", .strict = strict});
    MeasuredModule module({1});
    Trainer(quiet({.callbacks = {stop}, .max_epochs = 2})).fit(module);
  };
  EXPECT_EQ(testing::thrown_id([&] { fit(true); }), "MU449");
  EXPECT_NO_THROW(fit(false));
}

TEST(EarlyStopping, OptionsThatCannotWorkAreRefused) {  // MU451
  EXPECT_EQ(testing::thrown_id([] { EarlyStopping({.patience = -1}); }), "MU451");
}

TEST(EarlyStopping, ItsStateIsRestored) {
  EarlyStopping stop({.monitor = "v"});
  auto state = stop.state_dict();
  for (const auto* name : {"best_score", "patience", "reason", "stopped_epoch", "wait_count"})
    EXPECT_TRUE(state.find(name)) << name;
  state.set("wait_count", 2);
  state.set("best_score", 0.25);
  state.set("stopped_epoch", 7);
  state.set("reason", "enough");
  stop.load_state_dict(state);
  EXPECT_EQ(stop.wait_count(), 2);
  EXPECT_EQ(stop.best_score(), 0.25);
  EXPECT_EQ(stop.stopped_epoch(), 7);
  EXPECT_EQ(stop.stopping_reason(), "enough");
}

}  // namespace
}  // namespace muster
