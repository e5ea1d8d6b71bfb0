#include "track/mlflow_tracker.h"

#include <numeric>

#include "fake_mlflow.h"
#include "muster/testing/thrown.h"
#include "muster/track/trackers.h"
#include "run_files.h"

namespace muster::track {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr MlflowTimes kQuick{.at_end = 60s, .call = 2s, .first_pause = 1ms, .longest_pause = 5ms};
constexpr MlflowTimes kShortEnd{.at_end = 500ms, .call = 2s, .first_pause = 1ms, .longest_pause = 5ms};

std::vector<int64_t> steps_up_to(int64_t count) {
  std::vector<int64_t> steps(static_cast<std::size_t>(count));
  std::iota(steps.begin(), steps.end(), 0);
  return steps;
}

std::size_t count_in(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class MlflowTrackerTest : public WithCurl {
 protected:
  MlflowTracker tracker(MlflowTimes times = kQuick, const Environment& variables = {}) {
    return {folder_, {.mlflow = {.tracking_uri = server_.uri()}, .name = "digits"}, variables, times};
  }
  /// Logs so many steps and finishes; returns what stderr got.
  std::string logged(int64_t count, MlflowTimes times = kQuick, const Environment& variables = {}) {
    ::testing::internal::CaptureStderr();
    {
      auto tracked = tracker(times, variables);
      for (int64_t step = 0; step < count; ++step) {
        log_to(tracked, {{"loss", 0.5}}, step);
        if (step % 100 == 99) tracked.flush();
      }
      tracked.finish(RunStatus::success);
    }
    return ::testing::internal::GetCapturedStderr();
  }
  bool is_waiting() const { return std::filesystem::exists(waiting_lines_path(folder_)); }
  /// Has the first requests to that end of a path answered so.
  void answer_first(const std::string& end, int count, const FakeReply& reply, bool take_it = false) {
    fake_.set_answer([=, this, left = count](const FakeRequest& request) mutable -> std::optional<FakeReply> {
      if (!request.path.ends_with(end) || left-- <= 0) return std::nullopt;
      if (take_it) fake_.answer(request);
      return reply;
    });
  }

  ScratchFolder folder_;
  FakeMlflow fake_;
  FakeServer server_ = fake_.start();
};

TEST_F(MlflowTrackerTest, SendsWhatIsLoggedInOrder) {
  {
    auto tracked = tracker();
    log_hyperparams_to(tracked, {{"lr", 0.1}, {"net", "mlp"}});
    for (int64_t step = 0; step < 2500; ++step) log_to(tracked, {{"loss", 1.0 / static_cast<double>(step + 1)}}, step);
    tracked.finish(RunStatus::failed);
  }
  EXPECT_EQ(fake_.steps(), steps_up_to(2500));
  EXPECT_EQ(fake_.metrics[3], (json{{"key", "loss"}, {"step", 3}, {"timestamp", 1500}, {"value", 0.25}}));
  EXPECT_EQ(fake_.params, (std::map<std::string, std::string>{{"lr", "0.1"}, {"net", "mlp"}}));
  EXPECT_EQ(fake_.statuses, std::vector<std::string>{"FAILED"});
  EXPECT_EQ(fake_.count("log-batch"), 4);
  ASSERT_EQ(fake_.runs.size(), 1u);
  EXPECT_EQ(fake_.runs[0]["experiment_id"], "7");
  EXPECT_FALSE(is_waiting());
}

TEST_F(MlflowTrackerTest, AServerThatFailsForATimeGetsAllOfItOnce) {
  for (const auto& reply : {FakeReply{.body = R"({"message":"busy"})", .status = 500}, FakeReply{.drop = true},
                            FakeReply{.body = "<html>hello</html>"}, FakeReply{.status = 429}}) {
    fake_.metrics = json::array();
    answer_first("log-batch", 3, reply);
    const auto lines = logged(1500);
    EXPECT_EQ(fake_.steps(), steps_up_to(1500)) << lines;
    EXPECT_EQ(count_in(lines, "MU533"), 1u) << lines;
    EXPECT_EQ(count_in(lines, "warning"), 1u) << lines;
    EXPECT_FALSE(is_waiting());
    std::filesystem::remove(folder_ / "mlflow.json");
  }
}

TEST_F(MlflowTrackerTest, AReplyThatIsLostSendsNothingTwice) {
  answer_first("log-batch", 2, {.drop = true}, true);
  const auto lines = logged(1500);
  EXPECT_EQ(fake_.steps(), steps_up_to(1500)) << lines;
}

TEST_F(MlflowTrackerTest, AReplyThatIsLostMakesNoSecondRun) {
  answer_first("runs/create", 1, {.drop = true}, true);
  logged(10);
  EXPECT_EQ(fake_.runs.size(), 1u);
  EXPECT_EQ(fake_.steps(), steps_up_to(10));
}

TEST_F(MlflowTrackerTest, ADeadServerIsReportedOnceAndTheFileIsNamed) {
  fake_.set_answer([](const FakeRequest&) { return FakeReply{.drop = true}; });
  const auto lines = logged(300, kShortEnd);
  EXPECT_EQ(count_in(lines, "MU533"), 1u) << lines;
  EXPECT_EQ(count_in(lines, "MU534"), 1u) << lines;
  EXPECT_NE(lines.find(waiting_lines_path(folder_).string()), std::string::npos) << lines;
  EXPECT_NE(lines.find("muster track upload '" + folder_.path().string() + "'"), std::string::npos) << lines;
  EXPECT_EQ(count_in(read_text(waiting_lines_path(folder_)), "\n"), 301u);
}

TEST_F(MlflowTrackerTest, AServerThatNeverAnswersHoldsUpNobody) {
  fake_.set_answer([](const FakeRequest&) { return FakeReply{.hang = true}; });
  ::testing::internal::CaptureStderr();
  {
    Trackers trackers(
        {.log_with = {"csv", "mlflow"}, .mlflow = {.tracking_uri = server_.uri()}, .root = folder_, .timeout = 3s});
    for (int64_t step = 0; step < 1000; ++step) trackers.log({{"loss", 0.5}}, step);
    EXPECT_TRUE(trackers.flush());
    EXPECT_TRUE(read_text(folder_ / "version_0/metrics.csv").ends_with("\n999,0.5\n"));
  }
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_in(lines, "MU534"), 1u) << lines;
  EXPECT_EQ(count_in(lines, "MU422"), 0u) << lines;
  EXPECT_EQ(count_in(read_text(waiting_lines_path(folder_ / "version_0")), "\n"), 1001u);
}

TEST_F(MlflowTrackerTest, ValuesThatAreRefusedAreLeftOutAlone) {
  fake_.set_answer([](const FakeRequest& request) -> std::optional<FakeReply> {
    if (request.path.ends_with("log-batch") && request.body.find("bad") != std::string::npos)
      return FakeReply{.body = R"({"error_code":"INVALID_PARAMETER_VALUE","message":"no such name"})", .status = 400};
    return std::nullopt;
  });
  ::testing::internal::CaptureStderr();
  {
    auto tracked = tracker();
    for (int64_t step = 0; step < 100; ++step) log_to(tracked, {{step % 50 == 49 ? "bad" : "good", 1}}, step);
    tracked.finish(RunStatus::success);
  }
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(fake_.metrics.size(), 98u);
  EXPECT_EQ(count_in(lines, "no such name"), 1u) << lines;
  EXPECT_NE(lines.find("MU535: MLflow did not take 2 values and files"), std::string::npos) << lines;
}

TEST_F(MlflowTrackerTest, FilesAndImagesAreSent) {
  std::filesystem::create_directories(folder_ / "artifacts/plots/deep");
  write_text(folder_ / "artifacts/plots/a.svg", "one");
  write_text(folder_ / "artifacts/plots/deep/b.svg", "two");
  const auto png = png_bytes(3, 2);
  {
    auto tracked = tracker();
    tracked.log_artifact("plots", folder_ / "artifacts/plots");
    log_to(tracked, {{"noise/0", PngImage{png}}}, 7);
    tracked.finish(RunStatus::success);
  }
  EXPECT_EQ(fake_.files.at("7/r0/artifacts/plots/a.svg"), "one");
  EXPECT_EQ(fake_.files.at("7/r0/artifacts/plots/deep/b.svg"), "two");
  EXPECT_EQ(fake_.files.at("7/r0/artifacts/images/noise/0/7.png"), std::string(png.begin(), png.end()));
  EXPECT_EQ(fake_.files.size(), 3u);
}

TEST_F(MlflowTrackerTest, FilesThatTheServerDoesNotTakeStay) {
  std::filesystem::create_directories(folder_ / "artifacts");
  write_text(folder_ / "artifacts/a", "one");
  const auto with_files = [&] {
    ::testing::internal::CaptureStderr();
    {
      auto tracked = tracker();
      for (const auto* name : {"a", "none", "a"}) tracked.log_artifact(name, {});
      log_to(tracked, {{"loss", 1}}, 0);
      tracked.finish(RunStatus::success);
    }
    std::filesystem::remove(folder_ / "mlflow.json");
    return ::testing::internal::GetCapturedStderr();
  };
  fake_.artifact_uri = "s3://anna:secret@bucket/7";
  const auto lines = with_files();
  EXPECT_EQ(count_in(lines, "MU536: the file 'a'"), 1u) << lines;
  EXPECT_EQ(lines.find("secret"), std::string::npos) << lines;
  fake_.artifact_uri = "mlflow-artifacts:/7/r0/artifacts";
  for (const auto& reply : {FakeReply{.body = R"({"message":"started with --no-serve-artifacts"})", .status = 503},
                            FakeReply{.status = 500}, FakeReply{.status = 400}}) {
    fake_.set_answer([=](const FakeRequest& request) -> std::optional<FakeReply> {
      if (request.path.find("/mlflow-artifacts/") == std::string::npos) return std::nullopt;
      return reply;
    });
    EXPECT_NE(with_files().find("MU536"), std::string::npos);
  }
  EXPECT_EQ(fake_.steps(), std::vector<int64_t>(4, 0));
  EXPECT_EQ(read_text(folder_ / "artifacts/a"), "one");
}

TEST_F(MlflowTrackerTest, NoKeyIsInAFileOrAMessage) {
  const Environment variables{{"MLFLOW_TRACKING_USERNAME", "anna"}, {"MLFLOW_TRACKING_PASSWORD", "kq7secret"}};
  fake_.set_answer([](const FakeRequest& request) {
    return FakeReply{.body = json{{"message", request.headers + " kq7secret"}}.dump(), .status = 401};
  });
  const auto lines = logged(10, kShortEnd, variables);
  EXPECT_NE(fake_.requests().at(0).headers.find("Basic YW5uYTprcTdzZWNyZXQ="), std::string::npos);
  EXPECT_EQ(count_in(lines, "MU533"), 1u) << lines;
  EXPECT_NE(lines.find("***"), std::string::npos) << lines;
  auto all = lines;
  for (const auto& name : names_in(folder_)) all += read_text(folder_ / name);
  for (const auto* secret : {"kq7secret", "YW5uYTprcTdzZWNyZXQ="})
    EXPECT_EQ(all.find(secret), std::string::npos) << all;
}

TEST_F(MlflowTrackerTest, ALaterProcessGoesOnWithTheRun) {
  fake_.set_answer([](const FakeRequest&) { return FakeReply{.drop = true}; });
  logged(5, kShortEnd);
  fake_.set_answer({});
  logged(5);
  EXPECT_EQ(fake_.steps(), (std::vector<int64_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}));
  EXPECT_EQ(fake_.statuses, (std::vector<std::string>{"FINISHED", "FINISHED"}));
  logged(1);
  EXPECT_EQ(fake_.runs.size(), 1u);
  EXPECT_EQ(fake_.statuses.at(2), "RUNNING");
  EXPECT_EQ(fake_.steps().size(), 11u);
}

TEST_F(MlflowTrackerTest, WhatALaterProcessCouldNotSendIsUploadedWhole) {
  logged(50);
  fake_.set_answer([](const FakeRequest&) { return FakeReply{.drop = true}; });
  logged(200, kShortEnd);
  fake_.set_answer({});
  logged(1);
  EXPECT_EQ(fake_.steps().size(), 251u);
}

TEST_F(MlflowTrackerTest, ARunThatIsGivenIsNotMade) {
  logged(3, kQuick, {{"MLFLOW_RUN_ID", "r0"}});
  EXPECT_TRUE(fake_.runs.empty());
  EXPECT_EQ(fake_.steps(), steps_up_to(3));
}

TEST_F(MlflowTrackerTest, TheFileOfALongRunStaysSmall) {
  logged(30000);
  EXPECT_EQ(fake_.steps().size(), 30000u);
  EXPECT_LT(load_run(folder_)->sent, 1u << 20);
}

TEST_F(MlflowTrackerTest, WhatHasNoPlaceIsReportedOnce) {
  ::testing::internal::CaptureStderr();
  {
    auto tracked = tracker();
    for (int64_t step = 0; step < 3; ++step) log_to(tracked, {{"note", "some text"}, {"a:b", 1}}, step);
    tracked.finish(RunStatus::success);
  }
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_in(lines, "MU539"), 2u) << lines;
  EXPECT_EQ(fake_.metrics.at(0).at("key"), "a_b");
}

}  // namespace
}  // namespace muster::track
