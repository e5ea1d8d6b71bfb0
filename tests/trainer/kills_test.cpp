#include <csignal>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/process.h"

// Runs that are killed at places drawn by seed, and resumed from their last checkpoint, end as uninterrupted ones do.

namespace muster::launcher::testing {
namespace {

struct Ended {
  int code = 0;
  std::string out, error;
  /// What the run left behind; the number of calls of hooks is that of this process alone.
  std::string result() const { return out.substr(std::min(out.find("result"), out.size())); }
};

/// `restarts`: how often `muster run` starts the ranks again.
Ended run(int ranks, const std::string& folder, long long place, int signal, int victim, const std::string& ckpt_path,
          int restarts = 0) {
  std::vector<std::string> command = {MUSTER_BINARY_DIR "/tests/interrupted_program", folder, std::to_string(place),
                                      std::to_string(signal), std::to_string(victim)};
  if (!ckpt_path.empty()) command.push_back(ckpt_path);
  if (ranks > 1 || restarts > 0) {
    command.insert(command.begin(),
                   {"--devices", std::to_string(ranks), "--no-prefix", "--max-restarts", std::to_string(restarts)});
    command = muster_run(command);
  }
  Process job(command);
  const int code = job.wait();
  return {code, job.out(), job.error()};
}

Ended whole_run(int ranks) {
  const Folder folder;
  const auto whole = run(ranks, folder.path(), -1, 0, 0, "");
  EXPECT_EQ(whole.code, 0) << whole.error;
  EXPECT_NE(whole.out.find("result"), std::string::npos) << whole.out;
  return whole;
}

long long calls_of(const Ended& whole) {
  const auto at = whole.out.find("calls ");
  return at == std::string::npos ? 1 : std::atoll(whole.out.c_str() + at + 6);
}

void expect_resumed(const Ended& whole, int ranks, long long place) {
  const Folder folder;
  const int victim = static_cast<int>(place % ranks);
  const auto killed = run(ranks, folder.path(), place, SIGKILL, victim, "");
  EXPECT_NE(killed.code, 0) << "place " << place;
  const auto resumed = run(ranks, folder.path(), -1, 0, 0, "last");
  EXPECT_EQ(resumed.code, 0) << "place " << place << "\n" << resumed.error;
  EXPECT_EQ(resumed.result(), whole.result()) << "killed at call " << place << " of " << ranks << " ranks";
}

class Kills : public ::testing::TestWithParam<int> {};

TEST_P(Kills, AtAnyPlaceChangeNothing) {
  const int ranks = GetParam();
  const auto whole = whole_run(ranks);
  const auto calls = calls_of(whole);
  ASSERT_GT(calls, 50);
  if (std::getenv("MUSTER_TEST_FULL")) {
    for (long long place = 0; place < calls; ++place) expect_resumed(whole, ranks, place);
    return;
  }
  constexpr unsigned kSeed = 20261;
  std::mt19937 random(kSeed);
  // The first checkpoint is written after the first batch, some 25 calls from the begin.
  std::uniform_int_distribution<long long> places(25, calls - 1);
  for (int i = 0; i < 20; ++i) expect_resumed(whole, ranks, places(random));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Kills, ::testing::Values(1, 2),
                         [](const auto& test) { return "of" + std::to_string(test.param); });

class Restarts : public ::testing::TestWithParam<int> {};

TEST_P(Restarts, GoOnToTheBitInOneJob) {
  const int ranks = GetParam();
  const auto whole = whole_run(ranks);
  const auto calls = calls_of(whole);
  // The first start is killed, and, if it comes so far, the second: the program itself names no checkpoint.
  for (const auto place : {calls / 3, calls / 2, calls - 2}) {
    const Folder folder;
    const auto restarted = run(ranks, folder.path(), place, SIGKILL, static_cast<int>(place % ranks), "", 2);
    EXPECT_EQ(restarted.code, 0) << "place " << place << "\n" << restarted.error;
    EXPECT_NE(restarted.error.find("all ranks are started again"), std::string::npos) << restarted.error;
    EXPECT_EQ(restarted.result(), whole.result()) << "killed at call " << place << " of " << ranks << " ranks";
  }
}

TEST_P(Restarts, DoNotGoOnWithWhatAnEarlierJobHasLeft) {
  const int ranks = GetParam();
  const Folder folder;
  ASSERT_EQ(run(ranks, folder.path(), 40, SIGKILL, 0, "").code, 137);
  const auto restarted = run(ranks, folder.path(), 3, SIGKILL, 0, "", 2);
  EXPECT_EQ(restarted.code, 0) << restarted.error;
  EXPECT_EQ(times(restarted.error, "before it had saved a checkpoint: training starts from scratch"), 2)
      << restarted.error;
  EXPECT_EQ(calls_of(restarted), calls_of(whole_run(ranks))) << "the last start was not a whole run";
}

TEST_P(Restarts, BeginAnewIfTheProgramSaysSo) {
  const int ranks = GetParam();
  const Folder folder;
  const auto restarted = run(ranks, folder.path(), 60, SIGKILL, 0, "none", 2);
  EXPECT_EQ(restarted.code, 0) << restarted.error;
  EXPECT_EQ(calls_of(restarted), calls_of(whole_run(ranks))) << "the last start was not a whole run";
}

INSTANTIATE_TEST_SUITE_P(Ranks, Restarts, ::testing::Values(1, 2),
                         [](const auto& test) { return "of" + std::to_string(test.param); });

TEST(Terminations, EndTheProgramWith143OnOneRankAndOnTwo) {
  for (const int ranks : {1, 2}) {
    const auto whole = whole_run(ranks);
    const Folder folder;
    const auto ended = run(ranks, folder.path(), 60, SIGTERM, ranks - 1, "");
    EXPECT_EQ(ended.code, 143) << ended.error;
    EXPECT_NE(ended.error.find("hpc_ckpt_1.ckpt"), std::string::npos) << ended.error;
    const auto resumed = run(ranks, folder.path(), -1, 0, 0, "hpc");
    EXPECT_EQ(resumed.code, 0) << resumed.error;
    EXPECT_EQ(resumed.result(), whole.result());
  }
}

}  // namespace
}  // namespace muster::launcher::testing
