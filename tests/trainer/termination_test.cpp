#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/interrupted_run.h"
#include "trainer/votes.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::HookCount, testing::run_interruptible;

void expect_terminated_and_resumed(const fs::path& folder, int64_t step, int rank = 0, int ranks = 1,
                                   const testing::InterruptedRunOptions& how = {}) {
  HookCount whole_count;
  const auto whole = run_interruptible(folder / "whole", whole_count, "", how);
  // The last call is teardown(): nothing is left then that could be resumed, and a signal is that rank's alone.
  for (int64_t place = 0; place < whole.calls - 1; place += step) {
    const auto here = folder / std::to_string(place);
    HookCount count{.act_at = place};
    if ((place / step) % ranks == rank) count.act = [] { std::raise(SIGTERM); };
    if (ranks == 1) EXPECT_THROW(run_interruptible(here, count, "", how), Terminated) << place;
    else EXPECT_ANY_THROW(run_interruptible(here, count, "", how)) << place;  // or the loss of a rank that has left
    HookCount again;
    const auto resumed = run_interruptible(here, again, "hpc", how);
    EXPECT_EQ(difference(whole, resumed), "") << "SIGTERM at call " << place;
  }
}

TEST(Termination, ASignalAtAnyHookChangesNothing) {
  const testing::QuickFolder folder;
  expect_terminated_and_resumed(folder.path(), 1);
}

TEST(Termination, NorInsideOfAccumulationWindows) {
  const testing::QuickFolder folder;
  expect_terminated_and_resumed(folder.path(), testing::stride(3), 0, 1, {.accumulate = 3});
}

TEST(Termination, NorIfOneOfTwoRanksReceivesIt) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    expect_terminated_and_resumed(folder.path(), testing::stride(12), keeps_the_meeting_place.process_index(), 2);
  });
}

int handled = 0;

TEST(Termination, SIGUSR1QueuesTheJobAgainAndOwnHandlersRun) {
  const testing::TemporaryFolder folder;
  handled = 0;
  const auto before = std::signal(SIGUSR1, [](int) { ++handled; });
  std::vector<fs::path> queued;
  testing::CountingModule module(3);
  module.on_batch = [](testing::CountingModule& m) {
    if (m.trained.size() == 2) std::raise(SIGUSR1);
  };
  Trainer trainer({.default_root_dir = folder.path(),
                   .enable_checkpointing = false,
                   .max_epochs = 1,
                   .requeue = [&](const fs::path& checkpoint) { queued.push_back(checkpoint); }});
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 3U);
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(queued, std::vector<fs::path>{folder.path() / "hpc_ckpt_1.ckpt"});
  std::raise(SIGUSR1);
  EXPECT_EQ(handled, 2);
  std::signal(SIGUSR1, before);
  testing::CountingModule resumed(3);
  Trainer({.default_root_dir = folder.path(), .enable_checkpointing = false, .max_epochs = 1})
      .fit(resumed, {.ckpt_path = "hpc"});
  EXPECT_EQ(resumed.trained, (std::vector<int64_t>{2}));
}

/// SIGUSR1 in the first batch of a job that SLURM calls `job`, whose scontrol is this script.
void train_under_slurm(const fs::path& folder, const std::string& job, const std::string& script) {
  std::ofstream(folder / "scontrol") << "#!/bin/sh\n" << script;
  fs::permissions(folder / "scontrol", fs::perms::owner_all);
  const std::string before = std::getenv("PATH");
  setenv("PATH", (folder.string() + ":" + before).c_str(), 1);
  setenv("SLURM_JOB_ID", job.c_str(), 1);
  testing::CountingModule module(3);
  module.on_batch = [](testing::CountingModule& m) {
    if (m.trained.size() == 1) std::raise(SIGUSR1);
  };
  Trainer({.default_root_dir = folder, .enable_checkpointing = false, .max_epochs = 1}).fit(module);
  EXPECT_EQ(module.trained.size(), 3U);
  unsetenv("SLURM_JOB_ID");
  setenv("PATH", before.c_str(), 1);
}

TEST(Termination, UnderSlurmScontrolQueuesTheJobAgain) {
  const testing::TemporaryFolder folder;
  train_under_slurm(folder.path(), "1234", "echo \"$@\" > \"$(dirname \"$0\")/called\"");
  std::string called;
  std::getline(std::ifstream(folder.path() / "called"), called);
  EXPECT_EQ(called, "requeue 1234");
}

TEST(Termination, AScontrolThatFailsDoesNotEndTraining) {
  const testing::TemporaryFolder folder;
  ::testing::internal::CaptureStderr();
  train_under_slurm(folder.path(), "1234", "echo not a batch job; exit 1");
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("does not queue job 1234 again: scontrol requeue failed: not a batch job"), std::string::npos)
      << said;
}

}  // namespace
}  // namespace muster
