#include <cstdlib>
#include <stdexcept>

#include <gtest/gtest.h>

#include "muster/track/trackers.h"
#include "run_files.h"

namespace muster {
namespace {

using track::read_text;
using track::ScratchFolder;

void log_a_little(const Trackers& trackers) {
  for (int step = 0; step < 10; ++step) trackers.log({{"loss", 0.5}}, step);
}

void fail() { throw std::runtime_error("nobody catches this"); }

TEST(FinishAtExit, WritesWhatWasLoggedBeforeExit) {
  ScratchFolder root;
  const auto leave = [&] {
    Trackers trackers({.log_with = {"csv", "jsonl"}, .root = root});
    log_a_little(trackers);
    std::exit(3);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(3), "");
  EXPECT_TRUE(read_text(root / "version_0/metrics.csv").ends_with("9,0.5\n"));
  EXPECT_TRUE(read_text(root / "version_0/metrics.jsonl").ends_with("{\"status\":\"success\"}\n"));
}

TEST(FinishAtExit, WritesWhatWasLoggedBeforeAnUncaughtException) {
  ScratchFolder root;
  const auto leave = [&]() noexcept {
    Trackers trackers({.log_with = {"csv", "jsonl"}, .root = root});
    log_a_little(trackers);
    fail();
  };
  EXPECT_EXIT(leave(), ::testing::KilledBySignal(SIGABRT), "nobody catches this");
  EXPECT_TRUE(read_text(root / "version_0/metrics.csv").ends_with("9,0.5\n"));
  EXPECT_TRUE(read_text(root / "version_0/metrics.jsonl").ends_with("{\"status\":\"failed\"}\n"));
}

}  // namespace
}  // namespace muster
