#include <chrono>
#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using namespace std::chrono_literals;
using testing::CountingModule, testing::quiet;

/// Batches trained in four epochs of five.
size_t batches_with(const std::shared_ptr<Timer>& timer, TrainerOptions options = {}) {
  options.callbacks = {timer};
  options.max_epochs = 4;
  CountingModule module(5);
  Trainer(quiet(options)).fit(module);
  return module.trained.size();
}

std::shared_ptr<Timer> timer(const TimerOptions& options) { return std::make_shared<Timer>(options); }

TEST(Timer, ItEndsTrainingAfterABatchOrAnEpoch) {
  EXPECT_EQ(batches_with(timer({.duration = 0ms})), 1u);
  EXPECT_EQ(batches_with(timer({.duration = 0ms, .interval = "epoch"})), 5u);
  EXPECT_EQ(batches_with(timer({.duration = 24h})), 20u);
  EXPECT_EQ(batches_with(timer({})), 20u);
}

TEST(Timer, MinimaComeFirst) { EXPECT_EQ(batches_with(timer({.duration = 0ms}), {.min_epochs = 2}), 10u); }

TEST(Timer, TimeBeforeAResumedCheckpointCounts) {
  const auto used_up = timer({.duration = 50s});
  used_up->load_state_dict(State::Map{{"time_elapsed", 100.0}});
  EXPECT_EQ(batches_with(used_up), 0u);
  EXPECT_EQ(used_up->time_elapsed(), 100s);
  EXPECT_EQ(used_up->time_remaining(), -50s);
  const auto partly = timer({.duration = 24h});
  partly->load_state_dict(State::Map{{"time_elapsed", 100.0}});
  EXPECT_EQ(batches_with(partly), 20u);
  EXPECT_GT(partly->time_elapsed(), 100s);
  EXPECT_GT(partly->state_dict().at("time_elapsed").number(), 100.0);
}

TEST(Timer, ItKnowsWhenStagesBeganAndEnded) {
  const auto one = timer({});
  EXPECT_FALSE(one->start_time());
  EXPECT_FALSE(one->time_remaining());
  batches_with(one);
  for (const auto stage : {Stage::fit, Stage::validate}) {
    ASSERT_TRUE(one->start_time(stage) && one->end_time(stage));
    EXPECT_EQ(one->time_elapsed(stage), *one->end_time(stage) - *one->start_time(stage));
  }
  EXPECT_LE(one->end_time(Stage::validate), one->end_time(Stage::fit));
  EXPECT_FALSE(one->start_time(Stage::test));
}

TEST(Timer, TheMainRanksTimeEndsTrainingOnAllRanks) {
  testing::as_ranks(2, [] {
    const Accelerator keeps_the_meeting_place;
    const auto main = keeps_the_meeting_place.is_main_process();
    // Its stop() comes after the first batch's backward, so all ranks hear of it with the second one's gradients.
    EXPECT_EQ(batches_with(timer({.duration = main ? 0ms : 24h}), {.strategy = "ddp"}), 2u);
    EXPECT_EQ(batches_with(timer({.duration = main ? 24h : 0ms}), {.strategy = "ddp"}), 12u);
  });
}

TEST(Timer, ANegativeDurationIsRefused) {  // MU451
  EXPECT_EQ(testing::thrown_id([] { timer({.duration = -1ms}); }), "MU451");
}

}  // namespace
}  // namespace muster
