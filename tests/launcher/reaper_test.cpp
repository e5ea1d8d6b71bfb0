#include <csignal>

#include <gtest/gtest.h>

#include "launcher/child.h"
#include "launcher/process.h"

namespace muster::launcher::testing {
namespace {

TEST(Reaper, AKilledLauncherLeavesNoOrphan) {
  Process process(muster_run({"--devices", "2", rank_program(), "family"}));
  std::vector<Watched> all;
  for (int i = 0; i < 4; ++i) {
    auto line = process.line_with(" pid ");
    ASSERT_FALSE(line.empty()) << process.error();
    all.emplace_back(std::stoi(line.substr(line.find(" pid ") + 5)));
  }
  process.signal(SIGKILL);
  EXPECT_EQ(process.wait(), 137);
  for (const auto& one : all) EXPECT_TRUE(one.ends()) << "a rank, or what it had started, has outlived the launcher";
}

TEST(Reaper, IsGoneWithTheJob) {
  Process process(muster_run({"--devices", "1", rank_program(), "show"}));
  EXPECT_EQ(process.wait(), 0) << "a reaper left behind would hold nothing of the job, but it would be a process";
  EXPECT_EQ(process.error(), "");
}

}  // namespace
}  // namespace muster::launcher::testing
