#include "track/run.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include <gtest/gtest.h>

#include "event_file.h"
#include "recording_tracker.h"
#include "run_files.h"

namespace muster::track {
namespace {

/// Fails at each call.
class BrokenTracker : public Tracker {
 public:
  void log(const LoggedStep&) override { throw std::runtime_error("no network"); }
  void flush() override { throw std::runtime_error("still none"); }
};

std::size_t count_of(const std::string& text, std::string_view part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Run, ATrackerThatFailsIsReportedOnceAndTheOthersGoOn) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  ::testing::internal::CaptureStderr();
  {
    Trackers trackers({.log_with = {std::make_shared<BrokenTracker>(), mine}, .root = root});
    for (int step = 0; step < 3; ++step) {
      trackers.log({{"loss", 1}}, step);
      EXPECT_TRUE(trackers.flush());
    }
  }
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(mine->calls.size(), 4u);
  EXPECT_EQ(count_of(lines, "MU426: the tracker 'tracker' failed (no network)"), 1u) << lines;
  EXPECT_EQ(count_of(lines, "MU426"), 1u) << lines;
}

TEST(Run, AFullDiskIsReportedOnceAndTrainingGoesOn) {
  ScratchFolder root;
  const auto report = root / "report";
  const auto child = ::fork();
  if (child == 0) {
    ::dup2(::open(report.c_str(), O_RDWR | O_CREAT, 0600), STDERR_FILENO);
    const rlimit limit{4096, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);  // the thread that writes takes no signals, so it gets an error
    std::signal(SIGXFSZ, SIG_IGN);
    {
      Trackers trackers({.log_with = {"csv"}, .root = root});
      for (int step = 0; step < 3000; ++step) {
        trackers.log({{"loss", step}}, step);
        if (step % 1000 == 0) trackers.flush();
      }
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(count_of(read_text(report), "MU422"), 1u) << read_text(report);
  const auto csv = read_text(root / "version_0/metrics.csv");
  EXPECT_GT(csv.size(), 4000u);
  EXPECT_TRUE(csv.ends_with("\n"));
}

TEST(Run, WhatWasWrittenBeforeASigkillStays) {
  ScratchFolder root;
  const auto child = ::fork();
  if (child == 0) {
    Trackers trackers({.log_with = {"csv", "jsonl", "tensorboard"}, .root = root});
    for (int step = 0; step < 500; ++step) trackers.log({{"loss", step}}, step);
    trackers.flush();
    for (int step = 500; step < 5000; ++step) trackers.log({{"loss", step}}, step);
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  const auto folder = root / "version_0";
  const auto csv = read_text(folder / "metrics.csv");
  EXPECT_NE(csv.find("\n499,499\n"), std::string::npos);
  for (const auto& name : names_in(folder)) {
    if (!name.starts_with("events.")) continue;
    EXPECT_GE(read_events(read_text(folder / name)).size(), 501u);
  }
  // The run goes on in its files.
  Trackers trackers({.log_with = {"csv"}, .root = root, .version = "version_0"});
  trackers.log({{"loss", 0.5}}, 9999);
  trackers.finish();
  EXPECT_TRUE(read_text(folder / "metrics.csv").ends_with("\n9999,0.5\n"));
}

TEST(Run, AChildOfForkLeavesTheRunAlone) {
  ScratchFolder root;
  auto mine = std::make_shared<RecordingTracker>();
  Trackers trackers({.log_with = {mine}, .root = root});
  const auto child = ::fork();
  if (child == 0) {
    trackers.log({{"child", 1}}, 0);
    trackers.finish();
    ::_exit(trackers.flush() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  trackers.log({{"parent", 1}}, 0);
  trackers.finish();
  EXPECT_EQ(mine->calls, (std::vector<std::string>{"0 parent", "success"}));
}

}  // namespace
}  // namespace muster::track
