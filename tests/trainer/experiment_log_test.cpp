#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster {
namespace {

using testing::CountingModule, testing::logging_to, testing::quiet, testing::Recorder, testing::TemporaryFolder;

using Steps = std::vector<int64_t>;

/// Logs in every way that rows differ by.
struct LoggedModule : CountingModule {
  using CountingModule::CountingModule;
  std::function<void(LoggedModule&, int64_t)> also = {};
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    log("a", batch.sum());
    log("b", batch.sum(), {.on_epoch = true});
    log("c", batch.sum(), {.on_epoch = true, .on_step = false});
    log("hidden", batch.sum(), {.logger = false});
    if (also) also(*this, batch_idx);
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t) {
    log("v", batch.sum());
    log("vb", batch.sum(), {.on_step = true});
  }
  void test_step(torch::Tensor& batch, int64_t) { log("t", batch.sum()); }
  auto test_dataloader() { return numbers(2); }
};

/// The recorded run of Lightning: two epochs of four batches, each with three of validation.
TEST(ExperimentLog, RowsHaveTheStepsOfLightning) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(4, 3);
  Trainer trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 2, .max_epochs = 2}));
  trainer.fit(module);
  EXPECT_EQ(recorder->steps_of("a"), (Steps{1, 3, 5, 7}));
  EXPECT_EQ(recorder->steps_of("b_step"), (Steps{1, 3, 5, 7}));
  EXPECT_EQ(recorder->steps_of("b_epoch"), (Steps{3, 7}));
  EXPECT_EQ(recorder->steps_of("c"), (Steps{3, 7}));
  EXPECT_EQ(recorder->steps_of("v"), (Steps{3, 7}));
  EXPECT_EQ(recorder->steps_of("vb_step"), (Steps{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(recorder->steps_of("vb_epoch"), (Steps{3, 7}));
  EXPECT_TRUE(recorder->steps_of("hidden").empty());
  for (const auto& [step, values] : recorder->rows) {
    EXPECT_EQ(values.contains("epoch"), !values.contains("vb_step"));
    if (values.contains("epoch")) {
      EXPECT_EQ(values.at("epoch"), step / 4) << step;
    }
  }
  EXPECT_EQ(trainer.logged_metrics().at("b_epoch"), 1.5);
  EXPECT_EQ(trainer.log_step(), 8);
}

TEST(ExperimentLog, AWindowIsOneStep) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(5, 1);
  Trainer(logging_to(folder.path(), recorder, {.accumulate_grad_batches = 2, .log_every_n_steps = 1, .max_epochs = 1}))
      .fit(module);
  EXPECT_EQ(recorder->steps_of("a"), (Steps{0, 1, 2}));
}

TEST(ExperimentLog, ZeroLogsNoStep) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(4, 0);
  Trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 0, .max_epochs = 1})).fit(module);
  EXPECT_TRUE(recorder->steps_of("a").empty());
  EXPECT_EQ(recorder->steps_of("c"), (Steps{3}));
}

TEST(ExperimentLog, AValueLoggedBetweenRowsIsInTheNextOne) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(6, 0);
  module.also = [](LoggedModule& m, int64_t batch_idx) {
    if (batch_idx % 3 == 0) m.log("rare", 1.0);
  };
  Trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 3, .max_epochs = 1})).fit(module);
  EXPECT_EQ(recorder->steps_of("rare"), (Steps{2, 5}));
}

TEST(ExperimentLog, AMetricNamedStepSetsTheStep) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(2, 0);
  module.also = [](LoggedModule& m, int64_t batch_idx) { m.log("step", 100.0 + static_cast<double>(batch_idx)); };
  Trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 1, .max_epochs = 1})).fit(module);
  EXPECT_EQ(recorder->steps_of("a"), (Steps{100, 101}));
}

TEST(ExperimentLog, TheSanityCheckIsNotLogged) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(1, 3);
  auto options = logging_to(folder.path(), recorder, {.max_epochs = 1});
  options.num_sanity_val_steps = 2;
  Trainer(options).fit(module);
  EXPECT_EQ(recorder->steps_of("vb_step"), (Steps{0, 1, 2}));
  EXPECT_EQ(recorder->steps_of("v"), (Steps{0}));
}

TEST(ExperimentLog, TestsLogUnderTheLastStep) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(4, 0);
  Trainer trainer(logging_to(folder.path(), recorder, {.max_epochs = 1}));
  trainer.fit(module);
  trainer.test(module);
  EXPECT_EQ(recorder->steps_of("t"), (Steps{4}));
}

TEST(ExperimentLog, AFastRunIsNotLogged) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(4, 1);
  Trainer trainer(logging_to(folder.path(), recorder, {.fast_dev_run = 1}));
  trainer.fit(module);
  EXPECT_TRUE(recorder->rows.empty());
  EXPECT_TRUE(trainer.log_dir().empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ExperimentLog, HyperParametersAreLoggedOnce) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule module(1, 0);
  module.save_hyperparameters(
      State::Map{{"lr", 0.5}, {"layers", State::Map{{"width", 8}, {"bias", true}}}, {"kind", "mlp"}});
  Trainer trainer(logging_to(folder.path(), recorder, {.max_epochs = 1}));
  trainer.fit(module);
  trainer.test(module);
  EXPECT_EQ(recorder->hyperparam_calls, 1);
  EXPECT_EQ(recorder->hyperparams, (std::map<std::string, std::string>{
                                       {"kind", "mlp"}, {"layers/bias", "1"}, {"layers/width", "8"}, {"lr", "0.5"}}));
}

TEST(ExperimentLog, HyperParametersOfModuleAndDataMustAgree) {  // MU434
  struct Data : DataModule {
    auto train_dataloader() { return CountingModule::numbers(1); }
  };
  const auto fit = [](State of_module, State of_data) {
    LoggedModule module(1, 0);
    module.save_hyperparameters(std::move(of_module));
    Data data;
    data.save_hyperparameters(std::move(of_data));
    Trainer(quiet({.max_epochs = 1})).fit(module, data);
  };
  const State one = State::Map{{"size", 1}}, two = State::Map{{"size", 2}};
  EXPECT_NO_THROW(fit(one, one));
  EXPECT_EQ(testing::thrown_id([&] { fit(one, two); }), "MU434");
  EXPECT_EQ(testing::thrown_id([&] { fit(State::Map{{"w", torch::ones(2)}}, {}); }), "MU434");
  EXPECT_EQ(testing::thrown_id([&] { fit(State(3), {}); }), "MU434");
}

TEST(ExperimentLog, ARunThatThrowsIsWrittenAndFailed) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  {
    LoggedModule module(4, 0);
    module.also = [](LoggedModule&, int64_t batch_idx) {
      if (batch_idx == 3) throw std::runtime_error("enough");
    };
    Trainer trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 1, .max_epochs = 1}));
    EXPECT_THROW(trainer.fit(module), std::runtime_error);
    EXPECT_EQ(recorder->steps_of("a"), (Steps{0, 1, 2}));
  }
  EXPECT_EQ(recorder->ends, std::vector<RunStatus>{RunStatus::failed});
}

TEST(ExperimentLog, TheTrainersEndFinishesItsRun) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  {
    LoggedModule module(1, 0);
    Trainer trainer(logging_to(folder.path(), recorder, {.max_epochs = 1}));
    trainer.fit(module);
    trainer.fit(module);
    EXPECT_TRUE(recorder->ends.empty());
  }
  EXPECT_EQ(recorder->ends, std::vector<RunStatus>{RunStatus::success});
}

TEST(ExperimentLog, AResumedRunGoesOnCounting) {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  LoggedModule first(4, 2), second(4, 2);
  Trainer trainer(logging_to(folder.path(), std::make_shared<Recorder>(), {.log_every_n_steps = 2, .max_epochs = 1}));
  trainer.fit(first);
  trainer.save_checkpoint(folder.path() / "one.ckpt");
  Trainer(logging_to(folder.path(), recorder, {.log_every_n_steps = 2, .max_epochs = 2}))
      .fit(second, {.ckpt_path = folder.path() / "one.ckpt"});
  EXPECT_EQ(recorder->steps_of("a"), (Steps{5, 7}));
  EXPECT_EQ(recorder->steps_of("vb_step"), (Steps{2, 3}));
}

void fit_on_two_ranks() {
  const testing::InheritedFolder folder;
  LoggedModule module(8, 2);
  Trainer trainer(quiet(
      {.default_root_dir = folder.path(), .log_every_n_steps = 1, .logger = {.log_with = {"csv"}}, .max_epochs = 1}));
  trainer.fit(module);
  EXPECT_EQ(trainer.log_dir(), folder.path() / "logs/version_0");
  EXPECT_EQ(trainer.logger().folder().empty(), !trainer.runtime().is_main());
  EXPECT_EQ(trainer.logged_metrics().empty(), !trainer.runtime().is_main());
}
TEST(ExperimentLog, TheMainRankWrites) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, fit_on_two_ranks);
  std::ifstream file(folder.path() / "logs/version_0/metrics.csv");
  std::string header, line;
  std::getline(file, header);
  EXPECT_NE(header.find("b_epoch"), std::string::npos) << header;
  int rows = 0;
  while (std::getline(file, line)) ++rows;
  EXPECT_EQ(rows, 4 + 1 + 1 + 1);  // steps, validation's step and epoch, epoch
}

}  // namespace
}  // namespace muster
