#include "cluster/report.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace muster::cluster {
namespace {

using Clock = std::chrono::steady_clock;

TEST(Report, WhatARankTellsIsReadByItsLauncher) {
  const auto launcher = Report::make();
  ASSERT_GE(launcher.descriptor(), 0);
  const auto rank = Report::open(launcher.descriptor());
  EXPECT_EQ(launcher.read().lost_rank, -1);
  EXPECT_EQ(launcher.read().steps, -1);
  rank.step(0);
  rank.step(3);
  rank.step(2);  // another optimizer, which updates less often
  rank.lost(5, "MU052: " + std::string(2000, 'x'));
  rank.left_by_exception();
  const auto told = launcher.read();
  EXPECT_EQ(told.steps, 3);
  EXPECT_EQ(told.lost_rank, 5);
  EXPECT_EQ(told.reason.substr(0, 8), "MU052: x");
  EXPECT_TRUE(told.left_by_exception);
  rank.start();
  EXPECT_EQ(launcher.read().lost_rank, -1);
  EXPECT_FALSE(launcher.read().left_by_exception);
}

TEST(Report, OnlyWhatWasBegunLaterTakesALossBack) {
  const auto report = Report::make();
  const auto before = Clock::now();
  report.lost(1, "MU053");
  report.succeeded(before);
  EXPECT_EQ(report.read().lost_rank, 1);
  const auto at = report.read().lost_at;
  report.lost(1, "MU053 again");
  EXPECT_EQ(report.read().lost_at, at);
  report.succeeded(Clock::now() + std::chrono::nanoseconds(1));
  EXPECT_EQ(report.read().lost_rank, -1);
}

TEST(Report, LeadsNowhereWhereTheDescriptorIsNoPage) {
  EXPECT_EQ(Report::open(-1).descriptor(), -1);
  EXPECT_EQ(Report::open(987).descriptor(), -1);
  char name[] = "/tmp/muster-report-XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  EXPECT_EQ(Report::open(file).descriptor(), -1);
  close(file);
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(other, 4096), 0);
  fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_EQ(Report::open(other).descriptor(), -1);
  close(other);
  const Report nowhere;
  nowhere.lost(1, "");
  EXPECT_EQ(nowhere.read().lost_rank, -1);
}

}  // namespace
}  // namespace muster::cluster
