#include <csignal>

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

std::vector<std::string> launched(const std::string& processes, const std::string& exit_ms,
                                  const std::vector<std::string>& deed) {
  std::vector<std::string> command{rank_program(), "launch", processes, exit_ms};
  command.insert(command.end(), deed.begin(), deed.end());
  return command;
}

/// All ranks' processes, once each has said its id.
std::vector<std::pair<int, int>> ranks_and_pids(Process& process, int count) {
  std::vector<std::pair<int, int>> result;
  while (static_cast<int>(result.size()) < count) {
    auto line = process.line_with(" pid ");
    if (line.empty()) break;
    result.emplace_back(std::stoi(line.substr(line.find("rank ") + 5)), std::stoi(line.substr(line.find(" pid ") + 5)));
  }
  EXPECT_EQ(static_cast<int>(result.size()), count) << process.error();
  return result;
}

TEST(LocalRanks, AFailedRankEndsAllWithItsCode) {
  Process process(launched("3", "60000", {"fail", "1", "exit", "5"}));
  EXPECT_EQ(process.wait(), 5);
  EXPECT_NE(process.error().find("muster: MU035: rank 1 exited with code 5"), std::string::npos) << process.error();
}

TEST(LocalRanks, AKilledRankEndsAll) {
  Process process(launched("3", "60000", {"ignore"}));
  auto ranks = ranks_and_pids(process, 3);
  std::vector<Watched> all;
  int victim = 0;
  for (auto [rank, pid] : ranks) {
    all.emplace_back(pid);
    if (rank == 2) victim = pid;
  }
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  EXPECT_EQ(process.wait(), 137);
  EXPECT_NE(process.error().find("rank 2 was ended by signal 9 (SIGKILL)"), std::string::npos) << process.error();
  for (const auto& one : all) EXPECT_TRUE(one.ends());
}

TEST(LocalRanks, DieWithRankZero) {
  Process process(launched("3", "60000", {"ignore"}));
  std::vector<Watched> others;
  for (auto [rank, pid] : ranks_and_pids(process, 3))
    if (rank > 0) others.emplace_back(pid);
  process.signal(SIGKILL);
  for (const auto& one : others) EXPECT_TRUE(one.ends());
}

TEST(LocalRanks, AFailureOfRankZeroEndsTheOthers) {
  Process process(launched("2", "60000", {"leave", "4"}));
  EXPECT_EQ(process.wait(), 4) << process.error();
}

TEST(LocalRanks, RankZeroWaitsAtItsEndButNotForEver) {
  Process process(launched("2", "100", {"leave", "0"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_NE(process.error().find("other ranks still ran"), std::string::npos) << process.error();
}

TEST(LocalRanks, AFailureAfterTheEndOfRankZeroCounts) {
  Process process(launched("2", "60000", {"exits", "0", "6"}));
  EXPECT_EQ(process.wait(), 6);
  EXPECT_NE(process.error().find("rank 1 exited with code 6"), std::string::npos) << process.error();
}

}  // namespace
}  // namespace muster::launcher::testing
