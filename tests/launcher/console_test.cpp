#include "launcher/console.h"

#include <map>

#include <gtest/gtest.h>

#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

constexpr int kLines = 2000;

/// Every line of all ranks is there, whole, and each rank's are in order.
void check_lines(const std::vector<std::string>& lines, int ranks, bool prefixed) {
  std::map<int, int> next;
  for (const auto& line : lines) {
    int rank = std::stoi(line.substr(line.find("rank ") + 5));
    int number = next[rank]++;
    std::string wanted = prefixed ? "[" + std::to_string(rank) + "] " : "";
    wanted += "rank " + std::to_string(rank) + " line " + std::to_string(number) + std::string(number % 90, '.');
    ASSERT_EQ(line, wanted);
  }
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(next[rank], kLines) << "of rank " << rank;
}

TEST(Console, LinesOfManyRanksAreWholeAndPrefixed) {
  Process process(muster_run({"--devices", "4", rank_program(), "lines", std::to_string(kLines)}));
  ASSERT_EQ(process.wait(), 0) << process.error();
  check_lines(process.out_lines(), 4, true);
}

TEST(Console, PrefixesCanBeTurnedOff) {
  Process process(muster_run({"--devices", "2", "--no-prefix", rank_program(), "lines", std::to_string(kLines)}));
  ASSERT_EQ(process.wait(), 0) << process.error();
  check_lines(process.out_lines(), 2, false);
}

TEST(Console, AnUnfinishedLastLineIsWritten) {
  Process process(muster_run({"--devices", "2", rank_program(), "write", "1", "a\nno newline"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_EQ(process.out(), "[1] a\n[1] no newline\n");
}

TEST(Console, EachRankHasALogFile) {
  Folder folder;
  Process process(muster_run(
      {"--devices", "2", "--log-dir", folder.path() + "/new/logs", rank_program(), "write", "1", "raw\rtext"}));
  EXPECT_EQ(process.wait(), 0) << process.error();
  EXPECT_EQ(folder.read("new/logs/rank_0.log"), "");
  EXPECT_EQ(folder.read("new/logs/rank_1.log"), "raw\rtext");
  EXPECT_EQ(process.out(), "[1] text\n");
}

TEST(Console, OnATerminalRankZeroHasOneAndItsBarIsLive) {
  if (!has_terminals()) GTEST_SKIP() << "this machine gives no pseudo-terminals (/dev/ptmx cannot be opened)";
  Process::Setup setup;
  setup.terminal = true;
  Process process(muster_run({"--devices", "2", rank_program(), "terminal"}), setup);
  EXPECT_EQ(process.wait(), 0);
  EXPECT_NE(process.out().find("[0] terminal 1\r\n"), std::string::npos) << process.out();
  EXPECT_NE(process.out().find("[1] terminal 0\r\n"), std::string::npos) << process.out();
  Process bar(muster_run({"--devices", "1", "sh", "-c", "printf '10%%\\r20%%'"}), setup);
  EXPECT_EQ(bar.wait(), 0);
  EXPECT_NE(bar.out().find("[0] 20%\x1b[K") == std::string::npos ? bar.out().find("[0] 20%\r") : 0, std::string::npos)
      << bar.out();
}

}  // namespace
}  // namespace muster::launcher::testing
