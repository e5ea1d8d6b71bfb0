#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "format/checks.h"
#include "muster/testing/world.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;

constexpr std::int64_t kElements = 3'000'000;

void write_shards(const fs::path& folder, int world) {
  testing::run_threads(world, 0, [&](comm::Communicator group) {
    write_checkpoint(
        {.shared = State::Map{{"step", 3}},
         .per_rank = group.rank(),
         .shards = {shard_of("w", kElements, group.rank(), world, 0), shard_of("v", 1000, group.rank(), world, 5)}},
        folder, group, kQuickly);
  });
}

TEST(ReadCheckpoint, ReadsOnlyTheBytesOfWhatIsAskedFor) {
  ScratchFolder folder;
  for (int saved = 1; saved <= 4; ++saved) {
    write_shards(folder / "x", saved);
    for (int world = 1; world <= 4; ++world)
      for (int rank = 0; rank < world; ++rank) {
        const auto expected = shard_of("w", kElements, rank, world, 0);
        const Checkpoint checkpoint(folder / "x");
        EXPECT_TRUE(torch::equal(checkpoint.read("w", expected.begin, expected.begin + expected.local.numel()),
                                 expected.local));
        EXPECT_EQ(checkpoint.bytes_read(), expected.local.nbytes());
        const Checkpoint frugal(folder / "x", {.check = CheckpointCheck::as_read});
        EXPECT_TRUE(
            torch::equal(frugal.read("w", expected.begin, expected.begin + expected.local.numel()), expected.local));
        EXPECT_LE(frugal.bytes_read(), expected.local.nbytes() + static_cast<std::size_t>(2 * saved + 2) * (1 << 20))
            << "blocks at the ends";
      }
  }
}

TEST(ReadCheckpoint, ReadsAnyRange) {
  ScratchFolder folder;
  write_shards(folder / "x", 3);
  for (const auto check : {CheckpointCheck::everything, CheckpointCheck::as_read}) {
    const Checkpoint checkpoint(folder / "x", {.check = check});
    for (std::int64_t begin : {0L, 1L, 333L, 334L, 999'999L, 1'000'000L, 2'999'999L, kElements})
      for (std::int64_t count : {0L, 1L, 7L, 1'000'001L})
        if (begin + count <= kElements) {
          EXPECT_TRUE(
              torch::equal(checkpoint.read("w", begin, begin + count), torch::arange(begin, begin + count, at::kFloat)))
              << begin << " " << count;
        }
    EXPECT_TRUE(torch::equal(checkpoint.read("v", 100, 900), torch::arange(105, 905, at::kFloat)));
  }
}

TEST(ReadCheckpoint, FillsTheGivenMemory) {
  ScratchFolder folder;
  write_shards(folder / "x", 2);
  const Checkpoint checkpoint(folder / "x");
  const auto whole = torch::zeros(1000);
  const auto version = whole._version();
  checkpoint.read("v", 400, whole.slice(0, 200, 400));
  EXPECT_TRUE(torch::equal(whole.slice(0, 200, 400), torch::arange(405, 605, at::kFloat)));
  EXPECT_EQ(whole.slice(0, 0, 200).count_nonzero().item<int64_t>() +
                whole.slice(0, 400, 1000).count_nonzero().item<int64_t>(),
            0);
  EXPECT_GT(whole._version(), version) << "autograd must see the change";
}

TEST(ReadCheckpoint, NamesWhatIsAskedForInVain) {
  ScratchFolder folder;
  write_shards(folder / "x", 2);
  const Checkpoint checkpoint(folder / "x");
  expect_error<CheckpointError>("MU215", "no sharded tensor 'u'; it has: v, w", [&] { (void)checkpoint.sharded("u"); });
  expect_error<CheckpointError>("MU215", "saved by 2 ranks, there is no rank 2", [&] { (void)checkpoint.per_rank(2); });
  expect_error<CheckpointError>("MU215", "has 1000 elements; 990 to 1001",
                                [&] { (void)checkpoint.read("v", 990, 1001); });
  expect_error<CheckpointError>("MU215", "-1 to 3", [&] { checkpoint.read("v", -1, torch::zeros(4)); });
  expect_error<CheckpointError>("MU215", "has dtype Float, it was to be read as Long",
                                [&] { checkpoint.read("v", 0, torch::zeros(4, at::kLong)); });
  expect_error<CheckpointError>("MU215", "contiguous",
                                [&] { checkpoint.read("v", 0, torch::zeros(8).slice(0, 0, 8, 2)); });
}

TEST(ReadCheckpoint, StateMayBeChangedAndOutlivesTheFolder) {
  ScratchFolder folder;
  write_checkpoint({.shared = State::Map{{"a", torch::zeros(1000)}}}, folder / "x", {}, kQuickly);
  const State one = Checkpoint(folder / "x").shared(), other = Checkpoint(folder / "x").shared();
  one.at("a").tensor().add_(5);
  write_checkpoint({.shared = State::Map{{"a", torch::full({10}, 9.0)}}}, folder / "x", {}, kQuickly);
  fs::remove_all(folder / "x");
  EXPECT_TRUE(torch::equal(one.at("a").tensor(), torch::full({1000}, 5.0f)));
  EXPECT_TRUE(torch::equal(other.at("a").tensor(), torch::zeros(1000)));
}

TEST(ReadCheckpoint, EachStateIsHandedOutWithMemoryOfItsOwn) {
  ScratchFolder folder;
  write_checkpoint({.shared = torch::zeros(500'000), .per_rank = torch::zeros(500'000)}, folder / "x", {}, kQuickly);
  for (const auto check : {CheckpointCheck::everything, CheckpointCheck::as_read, CheckpointCheck::layout}) {
    const Checkpoint checkpoint(folder / "x", {.check = check});
    for (int i = 0; i < 3; ++i) {
      for (const State& state : {checkpoint.shared(), checkpoint.per_rank(0)}) {
        EXPECT_FALSE(state.tensor().any().item<bool>()) << "it sees what was written to an earlier one";
        state.tensor().fill_(1);
      }
    }
  }
}

TEST(ReadCheckpoint, AnOpenOneNeverBecomesAnother) {
  ScratchFolder folder;
  write_shards(folder / "x", 1);
  const Checkpoint checkpoint(folder / "x");
  write_shards(folder / "x", 1);
  expect_error<CheckpointError>("MU213", "No such file", [&] { (void)checkpoint.read("w", 0, 10); });
}

TEST(ReadCheckpoint, NamesMissingAndForeignFiles) {
  ScratchFolder folder;
  expect_error<CheckpointError>("MU210", "there is no checkpoint at", [&] { Checkpoint(folder / "x"); });
  expect_error<CheckpointError>("MU210", "manifest.json: cannot be opened",
                                [&] { Checkpoint checkpoint(folder.path()); });
  for (const char* name : {"rank-00001.json", "rank-00001.safetensors"}) {
    write_shards(folder / "x", 2);
    write_shards(folder / "other", 2);
    fs::rename(folder / "x" / name, folder / "kept");
    expect_error<CheckpointError>("MU213", name, [&] { Checkpoint(folder / "x"); });
    fs::copy_file(folder / "other" / name, folder / "x" / name);
    // The same tensors give the same bytes: only the index knows its save.
    if (std::string(name).ends_with(".json"))
      expect_error<CheckpointError>("MU213", name, [&] { Checkpoint(folder / "x"); });
    else Checkpoint(folder / "x");
    fs::remove(folder / "kept");
  }
}

TEST(ReadCheckpoint, NamesTheTensorThatIsDamaged) {
  ScratchFolder folder;
  write_shards(folder / "x", 2);
  const fs::path path = folder / "x/rank-00001.safetensors";
  std::string bytes = checks::read(path);
  bytes[bytes.size() / 2] ^= 4;
  checks::write(path, bytes);
  expect_error<CheckpointError>("MU213", "in tensor 'slice/w@1500000'", [&] { Checkpoint(folder / "x"); });
  const Checkpoint frugal(folder / "x", {.check = CheckpointCheck::as_read});
  EXPECT_TRUE(torch::equal(frugal.read("w", 0, 1'500'000), torch::arange(1'500'000, at::kFloat)));
  expect_error<CheckpointError>("MU213", "rank-00001.safetensors", [&] { (void)frugal.read("w", 0, kElements); });
  const Checkpoint trusting(folder / "x", {.check = CheckpointCheck::layout});
  EXPECT_FALSE(torch::equal(trusting.read("w", 0, kElements), torch::arange(kElements, at::kFloat)))
      << "it was asked to take what is there";
}

TEST(ReadCheckpoint, RefusesANewerVersion) {
  ScratchFolder folder;
  write_shards(folder / "x", 1);
  std::string text = checks::read(folder / "x/manifest.json");
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  checks::write(folder / "x/manifest.json", text);
  expect_error<CheckpointError>("MU216", "has version 2", [&] { Checkpoint(folder / "x"); });
}

}  // namespace
}  // namespace muster
