#include "muster/track/trackers.h"

#include <map>

#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "recording_tracker.h"
#include "run_files.h"

namespace muster {
namespace {

using testing::thrown;
using testing::thrown_id;
using track::read_text;
using track::RecordingTracker;
using track::ScratchFolder;

using Calls = std::vector<std::string>;

TEST(Trackers, WriteAllThatIsLoggedInOrder) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  {
    Trackers trackers({.log_with = {"csv", "jsonl", "tensorboard", mine}, .name = "digits", .root = root});
    EXPECT_EQ(trackers.folder(), root / "digits/version_0");
    trackers.log_hyperparams({{"lr", 0.1}});
    for (int step = 0; step < 100; ++step) trackers.log({{"loss", 1.0 / (step + 1)}}, step);
  }
  ASSERT_EQ(mine->calls.size(), 102u);
  EXPECT_EQ(mine->calls.front(), "hyperparam lr");
  for (int step = 0; step < 100; ++step)
    EXPECT_EQ(mine->calls[static_cast<std::size_t>(step) + 1], std::to_string(step) + " loss");
  EXPECT_EQ(mine->calls.back(), "success");
  const auto csv = read_text(root / "digits/version_0/metrics.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 101);
  EXPECT_TRUE(csv.ends_with("\n99,0.01\n"));
  const auto json = read_text(root / "digits/version_0/metrics.jsonl");
  EXPECT_EQ(std::count(json.begin(), json.end(), '\n'), 102);
  EXPECT_EQ(read_text(root / "digits/version_0/hparams.yaml"), "\"lr\": 0.1\n");
  EXPECT_EQ(track::names_in(root / "digits/version_0").size(), 4u);
}

TEST(Trackers, TakeMapsAndCountStepsThatAreNotGiven) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  Trackers trackers({.log_with = {mine}, .root = root});
  trackers.log(std::map<std::string, double>{{"a", 1}, {"b", 2}});
  trackers.log(std::vector<std::pair<const char*, int>>{{"c", 1}});
  trackers.log_hyperparams(std::map<std::string, std::string>{{"net", "mlp"}});
  trackers.finish();
  EXPECT_EQ(mine->calls, (Calls{"0 a", "0 b", "1 c", "hyperparam net", "success"}));
}

TEST(Trackers, OneTrackerAloneGetsWhatIsLoggedToIt) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  Trackers trackers({.log_with = {"csv", mine}, .root = root});
  trackers.get_tracker("csv").log({{"a", 1}}, 0);
  trackers.get_tracker("mine").log({{"b", 1}}, 1);
  trackers.finish();
  EXPECT_EQ(mine->calls, (Calls{"1 b", "success"}));
  EXPECT_EQ(read_text(root / "version_0/metrics.csv"), "step,a\n0,1\n");
  const auto words = thrown([&] { trackers.get_tracker("wandb"); });
  EXPECT_TRUE(words.starts_with("MU420: the run has no tracker 'wandb'")) << words;
  EXPECT_NE(words.find("csv"), std::string::npos) << words;
}

TEST(Trackers, AnExceptionFinishesTheRunAsFailed) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  try {
    Trackers trackers({.log_with = {mine}, .root = root});
    trackers.log({{"loss", 1}}, 0);
    throw std::runtime_error("in training");
  } catch (const std::runtime_error&) {}
  EXPECT_EQ(mine->calls, (Calls{"0 loss", "failed"}));
}

TEST(Trackers, ARunLastsAsLongAsItsCopies) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  Trackers copy;
  {
    Trackers trackers({.log_with = {mine}, .root = root});
    copy = trackers;
  }
  copy.log({{"loss", 1}}, 0);
  EXPECT_TRUE(copy.flush());
  EXPECT_EQ(mine->calls, Calls{"0 loss"});
  copy = {};
  EXPECT_EQ(mine->calls, (Calls{"0 loss", "success"}));
}

struct Tensor {
  double number;
  mutable int reads = 0;
  int64_t numel() const { return 1; }
  template <class T>
  T item() const {
    ++reads;
    return static_cast<T>(number);
  }
};

TEST(Trackers, ReadTensorsOnlyWhereSomethingIsTracked) {
  ScratchFolder root;
  const Tensor loss{0.25};
  Trackers().log({{"loss", loss}}, 0);
  EXPECT_EQ(loss.reads, 0);
  Trackers trackers({.root = root});
  trackers.log({{"loss", loss}, {"lr", 0.5}}, 3);
  trackers.log(std::map<std::string, Tensor>{{"loss", {0.75}}}, 4);
  trackers.finish();
  EXPECT_EQ(read_text(root / "version_0/metrics.csv"), "step,loss,lr\n3,0.25,0.5\n4,0.75,\n");
}

TEST(Trackers, WithoutARunDoNothing) {
  Trackers nothing;
  nothing.log({{"loss", 1}}, 0);
  nothing.log_hyperparams({{"lr", 1}});
  nothing.get_tracker("any").log({{"loss", 1}}, 0);
  EXPECT_TRUE(nothing.flush());
  EXPECT_TRUE(nothing.folder().empty());
  nothing.finish();
}

TEST(Trackers, RefuseWhatCannotBeLogged) {
  ScratchFolder root;
  Trackers trackers({.root = root});
  EXPECT_EQ(thrown_id([&] { trackers.log({{"", 1}}, 0); }), "MU423");
  EXPECT_EQ(thrown_id([&] { trackers.log({{"image", PngImage{}}}, 0); }), "MU423");
  trackers.finish();
  EXPECT_EQ(thrown_id([&] { trackers.log({{"loss", 1}}, 0); }), "MU424");
  EXPECT_EQ(thrown_id([&] { trackers.log_hyperparams({{"lr", 1}}); }), "MU424");
}

TEST(Trackers, AnUnknownNameIsRefusedBeforeThereIsAFolder) {
  ScratchFolder root;
  EXPECT_EQ(thrown_id([&] { Trackers({.log_with = {"csv", "tensor_board"}, .root = root}); }), "MU420");
  EXPECT_TRUE(track::names_in(root).empty());
}

TEST(Trackers, AVersionOfItsOwnIsContinued) {
  ScratchFolder root;
  for (int run = 0; run < 2; ++run) {
    Trackers trackers({.root = root, .version = "night"});
    trackers.log({{"loss", 1}}, run);
  }
  EXPECT_EQ(read_text(root / "night/metrics.csv"), "step,loss\n0,1\n1,1\n");
}

TEST(Trackers, SpilledValuesAreWrittenInOrder) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  Trackers trackers({.capacity = 200, .log_with = {mine}, .root = root});
  for (int step = 0; step < 500; ++step) trackers.log({{"loss", 1}}, step);
  trackers.finish();
  ASSERT_EQ(mine->calls.size(), 501u);
  for (int step = 0; step < 500; ++step)
    EXPECT_EQ(mine->calls[static_cast<std::size_t>(step)], std::to_string(step) + " loss");
  EXPECT_EQ(track::names_in(root / "version_0").size(), 0u);
}

}  // namespace
}  // namespace muster
