#include "launcher/watch.h"

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

/// Three ranks, of which rank 1 fails and the others would go on for ever and ignore SIGTERM.
struct Failure {
  const char* name;
  std::vector<std::string> deed;
  int code;
  std::string words;
};

class WatchFailure : public ::testing::TestWithParam<Failure> {};

TEST_P(WatchFailure, EndsAllWithTheRootCause) {
  const auto& failure = GetParam();
  std::vector<std::string> arguments{"--devices", "3", rank_program(), "fail", "1"};
  arguments.insert(arguments.end(), failure.deed.begin(), failure.deed.end());
  Process process(muster_run(arguments));
  EXPECT_EQ(process.wait(), failure.code);
  EXPECT_NE(process.error().find("muster: MU035: rank 1 " + failure.words), std::string::npos) << process.error();
  EXPECT_NE(process.error().find("muster:   about to fail\n"), std::string::npos) << "its last line is missing:\n"
                                                                                  << process.error();
}

INSTANTIATE_TEST_SUITE_P(Causes, WatchFailure,
                         ::testing::Values(Failure{"code", {"exit", "3"}, 3, "exited with code 3 after "},
                                           Failure{"crash", {"signal", "11"}, 139, "was ended by signal 11 (SIGSEGV)"},
                                           Failure{"abort", {"signal", "6"}, 134, "was ended by signal 6 (SIGABRT)"}),
                         [](const auto& test) { return test.param.name; });

TEST(Watch, AKilledRankTakesAllAndWhatTheyStartedWithIt) {
  Process process(muster_run({"--devices", "3", rank_program(), "family"}));
  std::vector<Watched> all;
  int victim = 0;
  for (int i = 0; i < 6; ++i) {
    auto line = process.line_with(" pid ");
    ASSERT_FALSE(line.empty()) << process.error();
    int pid = std::stoi(line.substr(line.find(" pid ") + 5));
    all.emplace_back(pid);
    if (line.find("rank 1 ") != std::string::npos) victim = pid;
  }
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_EQ(process.wait(), 137);
  EXPECT_NE(process.error().find("rank 1 was ended by signal 9 (SIGKILL)"), std::string::npos) << process.error();
  for (const auto& watched : all) EXPECT_TRUE(watched.ends());
}

TEST(Watch, AStoppedRankDoesNotKeepTheOthersAlive) {
  Process process(muster_run({"--devices", "2", rank_program(), "ignore"}));
  int pids[2] = {};
  for (int i = 0; i < 2; ++i) {
    auto line = process.line_with(" pid ");
    ASSERT_FALSE(line.empty());
    pids[line.find("rank 1 ") != std::string::npos] = std::stoi(line.substr(line.find(" pid ") + 5));
  }
  kill(pids[0], SIGSTOP);
  kill(pids[1], SIGKILL);
  EXPECT_EQ(process.wait(), 137);
}

TEST(Watch, AStoppedRankThatTheOthersGaveUpIsKilled) {
  Process process(muster_run({"--devices", "2", "--grace", "100ms", rank_program(), "give_up"}));
  int pids[2] = {};
  for (int i = 0; i < 2; ++i) {
    auto line = process.line_with(" pid ");
    ASSERT_FALSE(line.empty());
    pids[line.find("rank 1 ") != std::string::npos] = std::stoi(line.substr(line.find(" pid ") + 5));
  }
  kill(pids[1], SIGSTOP);
  kill(pids[0], SIGUSR1);
  EXPECT_EQ(process.wait(), 137);
  EXPECT_NE(process.error().find("muster: MU039: rank 1 is stopped by a signal: rank 0 had lost it, and no other rank "
                                 "runs. It is killed.\nmuster:   MU051: waited"),
            std::string::npos)
      << process.error();
}

class WatchSignal : public ::testing::TestWithParam<int> {};

TEST_P(WatchSignal, ReachesEveryRankAndTheirEndIsTheJobs) {
  Process process(muster_run({"--devices", "2", rank_program(), "handle"}));
  for (int i = 0; i < 2; ++i) ASSERT_FALSE(process.line_with(" pid ").empty());
  process.signal(GetParam());
  if (GetParam() == SIGUSR1) {
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(process.line_with("got ").empty());
    process.signal(SIGTERM);
  }
  EXPECT_EQ(process.wait(), 0) << "the ranks handled the signal and exited with 0";
  for (auto rank : {"[0] got ", "[1] got "})
    EXPECT_NE(process.out().find(rank + std::to_string(GetParam()) + "\n"), std::string::npos) << process.out();
}

INSTANTIATE_TEST_SUITE_P(Signals, WatchSignal, ::testing::Values(SIGINT, SIGTERM, SIGHUP, SIGUSR1));

TEST(Watch, ASecondInterruptKills) {
  Process process(muster_run({"--devices", "2", rank_program(), "ignore"}));
  std::vector<Watched> ranks;
  for (int i = 0; i < 2; ++i) {
    auto line = process.line_with(" pid ");
    ASSERT_FALSE(line.empty());
    ranks.emplace_back(std::stoi(line.substr(line.find(" pid ") + 5)));
  }
  process.signal(SIGINT);
  process.signal(SIGTERM);  // another one, since two equal ones that wait would be one
  EXPECT_EQ(process.wait(), 130);
  for (const auto& rank : ranks) EXPECT_TRUE(rank.ends());
}

TEST(Watch, SuccessOfAllIsSuccess) {
  Process process(muster_run({"--devices", "2", rank_program(), "exits", "0", "0"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(process.error(), "");
}

TEST(Watch, WhatARankLeavesRunningDoesNotHoldTheJob) {
  Process process(muster_run({"--devices", "1", "sh", "-c", "sleep 1000 & echo \"rank 0 pid $!\""}));
  auto left = watched_rank(process, 0);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_TRUE(left.ends());
}

}  // namespace
}  // namespace muster::launcher::testing
