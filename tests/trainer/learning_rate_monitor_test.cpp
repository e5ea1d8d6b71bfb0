#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/schedule/schedulers.h"
#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster {
namespace {

using testing::CountingModule, testing::logging_to, testing::quiet, testing::Recorder;
using Row = Recorder::Row;
using Make = std::function<Optimizers(CountingModule&)>;

/// It has a second weight, so that there may be two groups.
struct TwoWeights : CountingModule {
  using CountingModule::CountingModule;
  torch::Tensor v = register_parameter("v", torch::ones(1));
};

/// The rows of two epochs of two batches, each of them logged.
std::vector<Row> rows_with(LearningRateMonitorOptions options, const Make& make, bool manual = false) {
  const testing::TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  TwoWeights module(2, 0);
  module.automatic_optimization = !manual;
  module.make_optimizers = make;
  Trainer(logging_to(
              folder.path(), recorder,
              {.callbacks = {std::make_shared<LearningRateMonitor>(options)}, .log_every_n_steps = 1, .max_epochs = 2}))
      .fit(module);
  return recorder->rows;
}

std::vector<std::string> names_in(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const auto& [name, value] : rows.at(0).second) names.push_back(name);
  return names;
}

Optimizers halved(CountingModule& module, ScheduleInterval interval, const std::string& name = {}) {
  auto sgd = std::make_shared<torch::optim::SGD>(module.parameters(), torch::optim::SGDOptions(1.0).momentum(0.5));
  return {sgd, LRSchedulerConfig{
                   .interval = interval, .name = name, .scheduler = StepLR(*sgd, {.gamma = 0.5, .step_size = 1})}};
}
Make halved_by(ScheduleInterval interval) {
  return [interval](CountingModule& module) { return halved(module, interval); };
}

TEST(LearningRateMonitor, EachScheduleIsLoggedByItsInterval) {
  const std::vector<Row> by_epoch = {{0, {{"lr-SGD", 1.0}}}, {2, {{"lr-SGD", 0.5}}}};
  const std::vector<Row> by_step = {
      {0, {{"lr-SGD", 1.0}}}, {1, {{"lr-SGD", 0.5}}}, {2, {{"lr-SGD", 0.25}}}, {3, {{"lr-SGD", 0.125}}}};
  EXPECT_EQ(rows_with({}, halved_by("epoch")), by_epoch);
  EXPECT_EQ(rows_with({}, halved_by("step")), by_step);
  EXPECT_EQ(rows_with({.logging_interval = "epoch"}, halved_by("step")), (std::vector<Row>{by_step[0], by_step[2]}));
  EXPECT_EQ(rows_with({.logging_interval = "step"}, halved_by("epoch")).size(), 4u);
}

TEST(LearningRateMonitor, AnOptimizerWithoutScheduleIsLoggedToo) {
  EXPECT_EQ(rows_with({}, {}).size(), 2u + 4u);
  EXPECT_EQ(rows_with({.logging_interval = "epoch"}, {}).size(), 2u);
}

TEST(LearningRateMonitor, MomentumAndWeightDecayAreLoggedIfAsked) {
  const auto rows = rows_with({.log_momentum = true, .log_weight_decay = true}, halved_by("epoch"));
  EXPECT_EQ(rows.at(0).second, (Metrics{{"lr-SGD", 1}, {"lr-SGD-momentum", 0.5}, {"lr-SGD-weight_decay", 0}}));
  const auto adam = [](CountingModule& m) { return Optimizers(torch::optim::Adam(m.parameters(), 0.1)); };
  EXPECT_EQ(rows_with({.log_momentum = true}, adam).at(0).second,
            (Metrics{{"lr-Adam", 0.1}, {"lr-Adam-momentum", 0.9}}));
}

TEST(LearningRateMonitor, NamesTellOptimizersAndGroupsApart) {
  const auto several = [](CountingModule& m) {
    const auto sgd = [&] { return std::make_shared<torch::optim::SGD>(m.parameters(), 0.1); };
    return Optimizers{sgd(), sgd(), std::make_shared<torch::optim::Adam>(m.parameters(), 0.1)};
  };
  EXPECT_EQ(names_in(rows_with({.logging_interval = "epoch"}, several, true)),
            (std::vector<std::string>{"lr-Adam", "lr-SGD", "lr-SGD-1"}));
  const auto groups = [](CountingModule& m) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    for (const auto& weight : m.parameters()) all.emplace_back(std::vector<torch::Tensor>{weight});
    return Optimizers(torch::optim::SGD(all, 0.1));
  };
  EXPECT_EQ(names_in(rows_with({.log_key_prefix = "opt/"}, groups)),
            (std::vector<std::string>{"opt/lr-SGD/pg1", "opt/lr-SGD/pg2"}));
  const auto named = [](CountingModule& m) { return halved(m, "epoch", "rate"); };
  EXPECT_EQ(names_in(rows_with({}, named)), std::vector<std::string>{"rate"});
}

TEST(LearningRateMonitor, WatchersFindTheRate) {
  const testing::TemporaryFolder folder;
  CountingModule module(2, 0);
  Trainer trainer(logging_to(folder.path(), std::make_shared<Recorder>(),
                             {.callbacks = {std::make_shared<LearningRateMonitor>()}, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.callback_metrics().at("lr-SGD"), 0.1);
}

TEST(LearningRateMonitor, WithoutLoggerItIsAnError) {  // MU433
  CountingModule module(1, 0);
  const auto fit = [&](TrainerOptions options) {
    options.callbacks = {std::make_shared<LearningRateMonitor>()};
    Trainer(quiet(options)).fit(module);
  };
  EXPECT_EQ(testing::thrown_id([&] { fit({.max_epochs = 1}); }), "MU433");
  EXPECT_NO_THROW(fit({.fast_dev_run = 1}));
}

}  // namespace
}  // namespace muster
