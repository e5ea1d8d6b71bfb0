#include "checkpoint/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "comm/thread_world.h"
#include "format/checks.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;

TEST(CheckpointWriter, SavesWhatWasThereAtTheStart) {
  for (int world = 1; world <= 4; ++world) {
    ScratchFolder folder;
    testing::run_threads(world, 0, [&](comm::Communicator group) {
      CheckpointWriter writer(group, kQuickly);
      EXPECT_EQ(writer.wait(), fs::path()) << "nothing was started";
      const auto weight = torch::zeros(200'000);
      for (int step = 1; step <= 5; ++step) {
        weight.fill_(step);
        writer.start({.shared = State::Map{{"step", step}, {"weight", weight}},
                      .per_rank = State::Map{{"turned", weight.view({2, -1}).t()}},
                      .shards = {shard_of("w", 1000, group.rank(), world, step)}},
                     folder / "x");
        weight.fill_(-1);  // training goes on at once
      }
      EXPECT_EQ(writer.wait(), folder / "x");
      EXPECT_FALSE(writer.busy());
      EXPECT_EQ(writer.wait(), folder / "x") << "waiting again says the same";
    });
    const Checkpoint checkpoint(folder / "x");
    EXPECT_EQ(checkpoint.shared().at("step").integer(), 5);
    EXPECT_TRUE(torch::equal(checkpoint.shared().at("weight").tensor(), torch::full({200'000}, 5.0f)));
    EXPECT_TRUE(torch::equal(checkpoint.per_rank(world - 1).at("turned").tensor(), torch::full({100'000, 2}, 5.0f)));
    EXPECT_TRUE(torch::equal(checkpoint.read("w", 0, 1000), torch::arange(5, 1005, at::kFloat)));
    EXPECT_EQ(checks::entries(folder.path()), 1u);
  }
}

TEST(CheckpointWriter, SavesFromTwoProcessesWhileTheyTalk) {
  const fs::path folder = fs::path(MUSTER_BINARY_DIR) / "checkpoint-while-training";
  testing::expect_processes(2, [&](comm::Communicator group) {
    CheckpointWriter writer(group, {.durability = Durability::none, .numbered = true, .total_limit = 2});
    for (int step = 0; step < 6; ++step) {
      writer.start({.shared = State::Map{{"step", step}},
                    .per_rank = group.rank(),
                    .shards = {shard_of("w", 1'000'001, group.rank(), 2, step)}},
                   folder);
      for (int i = 0; i < 20; ++i) {
        const auto sum = torch::ones(100);
        group.all_reduce(sum);
        EXPECT_EQ(sum.sum().item<float>(), 200);
      }
    }
    EXPECT_EQ(writer.wait().filename(), "checkpoint_5");
  });
  EXPECT_EQ(checks::entries(folder), 2u);
  const Checkpoint checkpoint(*latest_checkpoint(folder));
  EXPECT_EQ(checkpoint.shared().at("step").integer(), 5);
  EXPECT_TRUE(torch::equal(checkpoint.read("w", 0, 1'000'001), torch::arange(5, 1'000'006, at::kFloat)));
  fs::remove_all(folder);
}

TEST(CheckpointWriter, TellsAFailureAtTheNextCallAndGoesOn) {
  ScratchFolder folder;
  fs::create_directory(folder / "taken");
  checks::write(folder / "taken/notes.txt", "mine");
  testing::run_threads(2, 0, [&](comm::Communicator group) {
    CheckpointWriter writer(group, kQuickly);
    writer.start({}, folder / "taken");
    expect_error<CheckpointError>("MU212", "that was started earlier failed: ", [&] { writer.wait(); });
    EXPECT_EQ(writer.wait(), fs::path()) << "it is told once";
    writer.start({}, folder / "taken");
    expect_error<CheckpointError>("MU212", "notes.txt", [&] { writer.start({}, folder / "x"); });
    writer.start({.shared = State::Map{{"step", 1}}}, folder / "x");
    EXPECT_EQ(writer.wait(), folder / "x");
  });
  EXPECT_EQ(Checkpoint(folder / "x").shared().at("step").integer(), 1);
}

TEST(CheckpointWriter, AFailureOfOneRankReachesAll) {
  ScratchFolder folder;
  testing::run_threads(3, 0, [&](comm::Communicator group) {
    CheckpointWriter writer(group, kQuickly);
    writer.start({.shared = State::Map{{"step", 1}}}, folder / "x");
    State own;
    if (group.rank() == 2) own = torch::zeros(2, at::kComplexDouble);
    writer.start({.shared = State::Map{{"step", 2}}, .per_rank = own}, folder / "x");
    expect_error<CheckpointError>("MU203", "rank 2: ", [&] { writer.wait(); });
  });
  EXPECT_EQ(Checkpoint(folder / "x").shared().at("step").integer(), 1);
  EXPECT_EQ(checks::entries(folder.path()), 1u);
}

TEST(CheckpointWriter, ItsEndWaitsForTheSave) {
  ScratchFolder folder;
  testing::run_threads(2, 0, [&](comm::Communicator group) {
    CheckpointWriter writer(group, kQuickly);
    writer.start({.shards = {shard_of("w", 3'000'000, group.rank(), 2, 0)}}, folder / "x");
  });
  EXPECT_EQ(Checkpoint(folder / "x").sharded("w").numel(), 3'000'000);
}

TEST(CheckpointWriter, ALostRankEndsTheSaveInTime) {
  ScratchFolder folder;
  const auto failures =
      comm::run_thread_world(2, {.timeout = std::chrono::milliseconds(500)}, [&](comm::Communicator group) {
        CheckpointWriter writer(group, kQuickly);
        if (group.rank() == 1) return;  // never saves
        writer.start({}, folder / "x");
        EXPECT_THROW(writer.wait(), CommError);
      });
  for (const auto& failure : failures) EXPECT_FALSE(failure);
  EXPECT_EQ(checks::entries(folder.path()), 0u) << "what was written aside is removed";
}

TEST(HostBuffer, KeepsItsMemoryFromSaveToSave) {
  checkpoint::HostBuffer buffer;
  const void* memory = nullptr;
  for (int step = 0; step < 3; ++step) {
    const auto a = torch::full({100'000}, static_cast<double>(step)), b = torch::full({3}, step + 0.5, at::kDouble);
    auto parts = checkpoint::plan_rank({.shared = State::Map{{"a", a}, {"b", b}}}, 0, "x");
    buffer.take(parts);
    EXPECT_TRUE(parts.tensors.empty()) << "the tensors are let go";
    ASSERT_EQ(buffer.bytes().size(), 1U) << "in one piece, as no device is asked";
    const auto bytes = buffer.bytes().front();
    ASSERT_EQ(bytes.size(), a.nbytes() + b.nbytes());
    EXPECT_EQ(*reinterpret_cast<const double*>(bytes.data()), step + 0.5) << "larger elements come first";
    if (step > 0) {
      EXPECT_EQ(bytes.data(), memory);
    }
    memory = bytes.data();
  }
}

}  // namespace
}  // namespace muster
