// What an exception that ends a run leaves behind must not reach the next one.
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::after_exceptions {
namespace {

using testing::CountingModule, testing::quiet;

struct Broken : std::runtime_error {
  Broken() : std::runtime_error("broken") {}
};

/// Asks for the end on the last rank in its second batch, which then throws on all, once its gradients are reduced.
struct StopsAndThrows : CountingModule {
  using CountingModule::CountingModule;
  bool breaks = true;
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    const auto& runtime = trainer().runtime();
    if (breaks && batch_idx == 1 && runtime.rank() + 1 == runtime.world_size()) trainer().stop();
    return CountingModule::training_step(batch, batch_idx);
  }
  void on_after_backward() override {
    if (breaks && std::ssize(trained) == 2) throw Broken();
  }
};

void expect_no_old_vote(const char* strategy, int accumulate) {
  StopsAndThrows module(10);
  const auto options =
      quiet({.accumulate_grad_batches = accumulate, .max_epochs = 1, .strategy = Strategy::parse(strategy)});
  Trainer first(options), second(options);
  const auto fits = [&](Trainer& trainer) {
    module.trained.clear();
    trainer.fit(module);
    return std::ssize(module.trained) * trainer.runtime().world_size();
  };
  for (auto* next : {&first, &second}) {
    module.breaks = true;
    EXPECT_THROW(fits(first), Broken) << strategy;
    module.breaks = false;
    EXPECT_EQ(fits(*next), 10) << strategy << (next == &first ? "" : ", another Trainer");
    first.set_max_epochs(2);
  }
  EXPECT_EQ(fits(first), 10) << strategy;
}

TEST(AfterExceptions, ItsVoteToStopIsForgotten) { expect_no_old_vote("auto", 1); }

TEST(AfterExceptions, AlsoWhereItCameWithGradients) {
  for (const char* strategy : {"ddp", "fsdp", "zero1"})
    testing::as_ranks(
        2,
        [&] {
          const Accelerator keeps_the_meeting_place;
          for (const int accumulate : {1, 2}) expect_no_old_vote(strategy, accumulate);
        },
        strategy);
}

TEST(AfterExceptions, NoCallbackCountsAsTheOneThatSaves) {
  struct Noted : CountingModule {
    using CountingModule::CountingModule;
    bool logs = false;
    std::vector<std::string> savers = {};
    void validation_step(torch::Tensor&, int64_t) {
      if (logs) log("v", 1.0);
    }
    void on_train_epoch_start() override {
      const testing::TemporaryFolder folder;
      trainer().save_checkpoint(folder.path() / "saved");
    }
    void on_save_checkpoint(State& state) override { savers.push_back(state.at("saver").text()); }
  };
  Noted module(2, 1);
  Trainer trainer(
      quiet({.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v"})}, .max_epochs = 1}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU449");
  module.logs = true;
  trainer.fit(module);
  EXPECT_EQ(module.savers, (std::vector<std::string>{"", ""}));
}

TEST(AfterExceptions, NoMetricIsTakenForOneOfTheNextRun) {
  CountingModule module(2, 1);
  struct Watched : Callback {
    std::size_t found = 0;
    void on_fit_start(Trainer& trainer, TrainerModule&) override { found = trainer.callback_metrics().size(); }
  };
  const auto watched = std::make_shared<Watched>();
  Trainer trainer(quiet({.callbacks = {watched}, .max_epochs = 1}));
  module.on_batch = [](CountingModule& m) {
    m.log("v", 1.0);
    if (std::ssize(m.trained) == 2) throw Broken();
  };
  EXPECT_THROW(trainer.fit(module), Broken);
  EXPECT_EQ(trainer.callback_metrics().size(), 1U);
  module.on_batch = {};
  trainer.fit(module);
  EXPECT_EQ(watched->found, 0U);
}

TEST(AfterExceptions, ATimerStands) {
  const auto timer = std::make_shared<Timer>();
  Trainer trainer(quiet({.callbacks = {timer}, .max_epochs = 1}));
  CountingModule module(2, 1);
  module.on_batch = [](CountingModule&) { throw Broken(); };
  EXPECT_THROW(trainer.fit(module), Broken);
  ASSERT_TRUE(timer->end_time());
  EXPECT_EQ(timer->time_elapsed(), *timer->end_time() - *timer->start_time());
}

}  // namespace
}  // namespace muster::after_exceptions
