#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/interrupted_run.h"

// A run that an exception ends at any hook, and that is resumed from "last", leaves what an uninterrupted one does.

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::HookCount, testing::InterruptedRunOptions, testing::RunResult, testing::run_interruptible;

struct Broken : std::runtime_error {
  Broken() : std::runtime_error("interrupted") {}
};

void expect_resumed_as_uninterrupted(const fs::path& folder, const InterruptedRunOptions& how, int64_t step) {
  HookCount whole_count;
  const auto whole = run_interruptible(folder / "whole", whole_count, "", how);
  EXPECT_EQ(whole.epochs, how.accumulate == 1 ? 2 : 3);
  EXPECT_EQ(whole.files.size(), 4U);
  EXPECT_FALSE(whole.stopped.empty());
  for (int64_t place = 0; place < whole.calls; place += step) {
    const auto here = folder / std::to_string(place);
    HookCount count{.act_at = place, .act = [] { throw Broken(); }};
    EXPECT_ANY_THROW(run_interruptible(here, count, "", how)) << place;  // Broken; or the loss of a rank that it left
    HookCount again;
    const auto resumed = run_interruptible(here, again, "last", how);
    EXPECT_EQ(difference(whole, resumed), "") << "interrupted at call " << place;
  }
}

TEST(Resuming, AnExceptionAtAnyHookChangesNothing) {
  const testing::QuickFolder folder;
  expect_resumed_as_uninterrupted(folder.path(), {}, 1);
}

TEST(Resuming, NorInsideOfAccumulationWindows) {
  const testing::QuickFolder folder;
  expect_resumed_as_uninterrupted(folder.path(), {.accumulate = 3}, testing::stride(3));
}

TEST(Resuming, NorWithAsynchronousSaves) {
  const testing::QuickFolder folder;
  expect_resumed_as_uninterrupted(folder.path(), {.asynchronous = true}, testing::stride(7));
}

TEST(Resuming, NorOnTwoRanks) {
  for (const char* strategy : {"ddp", "fsdp"}) {
    const testing::InheritedFolder folder;
    testing::as_ranks(
        2,
        [&] {
          const Accelerator keeps_the_meeting_place;
          expect_resumed_as_uninterrupted(folder.path(), {.strategy = strategy}, testing::stride(11));
        },
        strategy);
  }
}

}  // namespace
}  // namespace muster
