#include "launcher/restarts.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

TEST(Restarts, TheFirstWaitsForNothingTheNextLonger) {
  Restarts restarts(9);
  const Failure soon{.after = milliseconds(10), .what = "x"};
  EXPECT_EQ(restarts.next(soon), milliseconds(0));
  EXPECT_EQ(restarts.announcement(), "all ranks are started again (restart 1 of 9)");
  EXPECT_EQ(restarts.next(soon), milliseconds(1000));
  EXPECT_EQ(restarts.announcement(), "all ranks are started again in 1.0 s (restart 2 of 9)");
  EXPECT_EQ(restarts.next(soon), milliseconds(2000));
  EXPECT_EQ(restarts.count(), 3);
  EXPECT_EQ(restarts.next(soon), std::nullopt);
  EXPECT_EQ(restarts.count(), 3);
}

TEST(Restarts, ARoundThatGotSomewhereStartsTheCountAnew) {
  Restarts restarts(9);
  const Failure soon{.after = milliseconds(10)}, trained{.after = milliseconds(10), .made_steps = true},
      lasted{.after = milliseconds(60000)};
  for (const auto& [failure, wait] : {std::pair(soon, 0),
                                      {soon, 1000},
                                      {soon, 2000},
                                      {trained, 0},
                                      {soon, 0},
                                      {soon, 1000},
                                      {lasted, 0},
                                      {soon, 0},
                                      {soon, 1000}})
    EXPECT_EQ(restarts.next(failure), milliseconds(wait));
  EXPECT_EQ(restarts.next(trained), std::nullopt) << "more than asked for";
}

TEST(Restarts, TheEndNamesTheCauseOfEachFailure) {
  Restarts none(0), few(1), many(100);
  EXPECT_EQ(none.next({.what = "a"}), std::nullopt);
  EXPECT_TRUE(none.summary().empty()) << "the one failure is told without it";
  EXPECT_TRUE(few.summary().empty());
  few.next({.what = "a"});
  EXPECT_EQ(few.summary(), (std::vector<std::string>{"the job failed 1 time:", "  1. a"}));
  few.next({.what = "b"});
  EXPECT_EQ(few.summary(), (std::vector<std::string>{"the job is not restarted again: max restarts is 1",
                                                     "the job failed 2 times:", "  1. a", "  2. b"}));
  for (int i = 1; i <= 25; ++i) many.next({.made_steps = true, .what = "c" + std::to_string(i)});
  const auto lines = many.summary();
  ASSERT_EQ(lines.size(), 21u);
  EXPECT_EQ(lines[0], "the job failed 25 times; the last 20:");
  EXPECT_EQ(lines[1], "  6. c6");
}

TEST(Restarts, ACauseIsOneLine) {
  RootCause cause{.after = milliseconds(200), .end = {79, 0}, .error_message = "MU002: x\ny", .reason = {}};
  cause.rank = 1;
  cause.steps = 4;
  EXPECT_EQ(one_line(cause),
            "MU035: rank 1 exited with code 79 (an error that nobody caught) after 0.2 s, in step 5: MU002: x");
}

TEST(Restarts, ACauseDoesNotSayWhatBecomesOfOtherRanks) {
  RootCause cause{.after = milliseconds(200), .end = {79, 0}, .error_message = "", .other = 3, .reason = "MU057: x"};
  for (auto kind : {RootCause::Kind::failed, RootCause::Kind::elsewhere, RootCause::Kind::left,
                    RootCause::Kind::abandoned, RootCause::Kind::silent}) {
    cause.kind = kind;
    const auto line = one_line(cause), told = describe(cause, {}, nullptr).front();
    EXPECT_EQ(line.find(" are ended"), std::string::npos) << line;
    EXPECT_TRUE(told.ends_with(" are ended.")) << told;
    EXPECT_TRUE(told.starts_with("muster: " + line)) << told;
  }
}

TEST(Restarts, AWorldIsStartedAgainUntilItSucceeds) {
  Process process(muster_run({"--max-restarts", "3", "--devices", "1", "--no-prefix", "sh", "-c",
                              "echo $MUSTER_RESTART_COUNT $TORCHELASTIC_RESTART_COUNT; "
                              "echo $MUSTER_JOB; echo $MUSTER_SECRET; test $MUSTER_RESTART_COUNT = 2"}));
  EXPECT_EQ(process.wait(), 0) << process.error();
  const auto lines = process.out_lines();
  ASSERT_EQ(lines.size(), 9u) << process.out();
  EXPECT_EQ(lines[0] + lines[3] + lines[6], "0 01 12 2");
  EXPECT_EQ(std::set(lines.begin(), lines.end()).size(), 9u) << "a job's name or its secret came again";
  EXPECT_EQ(times(process.error(), "all ranks are started again"), 2) << process.error();
  EXPECT_NE(
      process.error().find("muster: the job failed 2 times:\nmuster:   1. MU035: rank 0 exited with code 1 after "),
      std::string::npos)
      << process.error();
}

TEST(Restarts, LogFilesAreContinued) {
  Folder logs;
  Process process(muster_run({"--max-restarts", "1", "--devices", "1", "--log-dir", logs.path(), "sh", "-c",
                              "printf unfinished; test $MUSTER_RESTART_COUNT = 1"}));
  EXPECT_EQ(process.wait(), 0) << process.error();
  EXPECT_EQ(logs.read("rank_0.log"), "unfinished\nmuster: restart 1\nunfinished");
}

TEST(Restarts, WithoutTheOptionNothingIsRestarted) {
  Process process(muster_run({"--devices", "1", rank_program(), "exits", "3"}));
  EXPECT_EQ(process.wait(), 3);
  EXPECT_EQ(process.error().find("again"), std::string::npos) << process.error();
  EXPECT_EQ(process.error().find("failed"), std::string::npos) << process.error();
}

TEST(Restarts, FailingAtOnceEachTimeEndsWithTheListOfCauses) {
  Process process(muster_run({"--max-restarts", "50", "--devices", "2", rank_program(), "exits", "0", "3"}));
  EXPECT_EQ(process.wait(), 3);
  EXPECT_EQ(times(process.error(), "all ranks are started again"), 3) << process.error();
  EXPECT_NE(process.error().find("muster: MU471: the job is not restarted again: each of the last 4 rounds failed"),
            std::string::npos)
      << process.error();
  for (int i = 1; i <= 4; ++i)
    EXPECT_EQ(times(process.error(), "muster:   " + std::to_string(i) + ". MU035: rank 1 exited with code 3"), 1)
        << process.error();
}

TEST(Restarts, ANegativeNumberIsRefusedBeforeAnythingStarts) {
  Process negative(muster_run({"--max-restarts", "-1", rank_program(), "show"}));
  EXPECT_EQ(negative.wait(), 2);
  EXPECT_NE(negative.error().find("MU036"), std::string::npos) << negative.error();
}

class RestartsSignal : public ::testing::TestWithParam<int> {};

TEST_P(RestartsSignal, EndsTheJobWithoutARestart) {
  Process process(muster_run({"--max-restarts", "3", "--devices", "2", rank_program(), "round", "0"}));
  for (int i = 0; i < 2; ++i) ASSERT_FALSE(process.line_with("round 0 rank ").empty()) << process.error();
  process.signal(GetParam());
  EXPECT_EQ(process.wait(), 128 + GetParam());
  EXPECT_EQ(process.error(), "");
}

TEST_P(RestartsSignal, EndsTheWaitBetweenRounds) {
  std::string command = "exec";
  for (const auto& word : muster_run({"--max-restarts", "3", "--devices", "1", rank_program(), "exits", "3"}))
    command += " '" + word + "'";
  Process process({"sh", "-c", command + " 2>&1"});
  ASSERT_FALSE(process.line_with("in 1.0 s (restart 2 of 3)").empty());
  process.signal(GetParam());
  EXPECT_EQ(process.wait(), 128 + GetParam());
  EXPECT_NE(process.out().find("the job failed 2 times:"), std::string::npos) << process.out();
}

INSTANTIATE_TEST_SUITE_P(Signals, RestartsSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

/// While it lives, what loses its parent becomes a child of this process.
struct Subreaper {
  Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, 0); }
};

std::vector<int> children_of(int process) {
  std::vector<int> result;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text);
    int parent = 0;
    char state = 'Z';
    if (const auto name = text.rfind(')');
        name == std::string::npos || std::sscanf(text.c_str() + name + 1, " %c %d", &state, &parent) != 2)
      continue;
    if (parent == process && state != 'Z') result.push_back(std::stoi(entry.path().filename()));
  }
  return result;
}

/// The descriptors of the launcher and of all its children now, one text for each process.
std::multiset<std::string> held_now(int launcher) {
  auto processes = children_of(launcher);
  processes.push_back(launcher);
  std::multiset<std::string> result;
  for (int process : processes) {
    std::string text;
    for (const auto& one : descriptors_of(process)) text += one + " ";
    result.insert(text);
  }
  return result;
}

/// The same once this round's reaper has closed what it inherited.
std::multiset<std::string> held_by(int launcher) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  auto held = held_now(launcher);
  while (!held.contains("pipe:[ ") && std::chrono::steady_clock::now() < end) held = held_now(launcher);
  return held;
}

int pid_in(const std::string& line) { return std::stoi(line.substr(line.find(" pid ") + 5)); }

struct Way {
  const char* flag;
  std::size_t processes;  ///< of a job of two ranks
};

class RestartsWay : public ::testing::TestWithParam<Way> {};

TEST_P(RestartsWay, ManyInARowLeaveNothingBehind) {
  const std::string last = std::getenv("MUSTER_TEST_FULL") ? "1000" : "50";
  Subreaper orphans_come_here;
  Folder temporary;
  Process::Setup setup;
  setup.environment = {"TMPDIR=" + temporary.path()};
  Process process(
      muster_run({"--max-restarts", last, "--devices", "2", GetParam().flag, rank_program(), "round", last}), setup);
  int victim = 0;
  for (int i = 0; i < 2; ++i) {
    const auto line = process.line_with("round 0 rank ");
    ASSERT_FALSE(line.empty()) << process.error();
    victim = pid_in(line);
  }
  const auto before = held_by(process.pid());
  EXPECT_EQ(before.size(), GetParam().processes);
  kill(victim, SIGKILL);
  for (int i = 0; i < 2; ++i) ASSERT_FALSE(process.line_with("round " + last + " rank ").empty()) << process.error();
  EXPECT_EQ(held_by(process.pid()), before);
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait(), 143) << process.error();
  EXPECT_NE(process.error().find("the job failed " + last + " times; the last 20:"), std::string::npos);
  for (int child : children_of(getpid())) EXPECT_TRUE(Watched(child).ends());
  while (waitpid(-1, nullptr, WNOHANG) > 0) {}
  EXPECT_TRUE(fs::is_empty(temporary.path()));  // leftovers.cpp looks at /dev/shm at the end of the program
}

// The launcher, its reaper, two ranks, and what they are forked from.
INSTANTIATE_TEST_SUITE_P(Ways, RestartsWay, ::testing::Values(Way{"--no-fork-ranks", 4}, Way{"--fork-ranks", 5}),
                         [](const auto& param) { return param.param.processes == 4 ? "spawned" : "forked"; });

}  // namespace
}  // namespace muster::launcher::testing
