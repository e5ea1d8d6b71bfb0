#include "muster/launcher/launch.h"

#include <gtest/gtest.h>

#include "launcher/process.h"
#include "muster/base/error.h"

namespace muster::launcher::testing {
namespace {

/// rank_main with launch(processes), and 60 s for the others at the end.
std::vector<std::string> launched(const std::string& processes, const std::vector<std::string>& deed) {
  std::vector<std::string> command{rank_program(), "launch", processes, "60000"};
  command.insert(command.end(), deed.begin(), deed.end());
  return command;
}

TEST(Launch, TheProgramBecomesRankZeroAndStartsTheOthers) {
  Process process(launched("3", {"show"}));
  EXPECT_EQ(process.wait(), 0) << process.error();
  for (int rank = 0; rank < 3; ++rank) {
    auto word = std::to_string(rank);
    EXPECT_NE(process.out().find("launcher muster rank " + word + " of 3 local " + word + " of 3 port "),
              std::string::npos)
        << process.out();
  }
  auto line = process.out().substr(process.out().find("rank 0 of 3"));
  EXPECT_EQ(line.substr(0, line.find('\n')).find("fd -1"), std::string::npos) << "rank 0 holds the socket of its store";
}

TEST(Launch, OneRankIsAloneWithoutProcesses) {
  for (auto processes : {"1", "0"}) {
    Process process(launched(processes, {"show"}));
    EXPECT_EQ(process.wait(), 0) << process.error();
    EXPECT_EQ(process.out(), "launcher none rank 0 of 1 local 0 of 1 port 0 fd -1\n");
  }
}

TEST(Launch, UnderALauncherItStartsNothing) {
  for (auto processes : {"0", "2"}) {
    Process process(muster_run({"--devices", "2", rank_program(), "launch", processes, "60000", "show"}));
    EXPECT_EQ(process.wait(), 0) << process.error();
    EXPECT_EQ(process.out_lines().size(), 2u) << process.out();
  }
}

TEST(Launch, AnotherCountThanTheLaunchersIsMU032) {
  Process process(muster_run({"--devices", "2", rank_program(), "launch", "3", "60000", "show"}));
  EXPECT_EQ(process.wait(), 9);
  EXPECT_NE(
      process.error().find("MU032: the program asks for 3 ranks on this node, but its launcher (muster) started 2"),
      std::string::npos)
      << process.error();
}

TEST(Launch, NonsenseIsMU036) {
  for (auto field : {&LaunchOptions::processes, &LaunchOptions::nodes, &LaunchOptions::threads}) {
    LaunchOptions wrong;
    wrong.*field = -1;
    try {
      launch(wrong);
      ADD_FAILURE();
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.id(), "MU036");
    }
  }
}

TEST(Launch, AnUncaughtExceptionThatIsSecondaryGivesWayToTheRootCause) {
  Process process(launched("2", {"echo", "5"}));
  EXPECT_EQ(process.wait(), 5) << process.error();
  EXPECT_NE(process.error().find("rank 1 exited with code 5"), std::string::npos) << process.error();
  EXPECT_NE(process.error().find("the other rank is gone"), std::string::npos) << process.error();
}

TEST(Launch, AnUncaughtErrorOfAllRanksIsSaidOnceAndHasAnExitCode) {
  Process process(launched("3", {"throws", "same"}));
  EXPECT_EQ(process.wait(), 79) << process.error();
  EXPECT_EQ(times(process.error(), "MU002: unknown thing"), 1) << process.error();
  EXPECT_EQ(times(process.error(), "exited with code 79 (an error that nobody caught)"), 1) << process.error();
  EXPECT_EQ(process.error().find("terminate called"), std::string::npos) << process.error();
  // The others may have been ended before they came to it.
  EXPECT_GE(times(process.out(), "held back"), 1) << process.out();
}

TEST(Launch, UncaughtErrorsThatDifferAreSaidOnceEach) {
  Process process(launched("3", {"throws", "each"}));
  EXPECT_EQ(process.wait(), 79) << process.error();
  EXPECT_GE(times(process.error(), "MU002: of rank "), 1) << process.error();
  for (auto words : {"MU002: of rank 0", "MU002: of rank 1", "MU002: of rank 2"})
    EXPECT_LE(times(process.error(), words), 1) << process.error();
}

TEST(Launch, OtherUncaughtExceptionsStayCrashes) {
  Process process(launched("2", {"throws", "other"}));
  EXPECT_EQ(process.wait(), 134) << process.error();
}

}  // namespace
}  // namespace muster::launcher::testing
