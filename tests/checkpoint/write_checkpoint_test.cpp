#include <fstream>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "format/atomic_folder.h"
#include "format/checks.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;
using testing::thrown;

/// What rank `rank` of `world` saves in these tests.
CheckpointContents contents_of(int rank, int world, std::int64_t seed) {
  CheckpointContents contents;
  contents.shared = every_kind_of_state(seed);
  contents.per_rank =
      State::Map{{"rank", rank}, {"generator", torch::arange(seed + rank, seed + rank + 100, at::kByte)}};
  contents.shards.push_back(shard_of("weight", 1001, rank, world, seed));
  contents.shards.push_back(shard_of("few", 2, rank, world, seed, at::kLong));
  contents.shards.push_back({.name = "empty", .shape = {0, 4}, .begin = 0, .local = torch::empty({0})});
  if (rank == world - 1)
    contents.shards.push_back(
        {.name = "only on the last", .shape = {2, 3}, .begin = 0, .local = torch::ones({2, 3}, at::kBool)});
  return contents;
}

void expect_contents(const fs::path& folder, int world, std::int64_t seed, const ReadCheckpointOptions& options = {}) {
  const Checkpoint checkpoint(folder, options);
  ASSERT_EQ(checkpoint.world_size(), world);
  EXPECT_TRUE(identical(checkpoint.shared(), every_kind_of_state(seed)));
  for (int rank = 0; rank < world; ++rank)
    EXPECT_TRUE(identical(checkpoint.per_rank(rank), contents_of(rank, world, seed).per_rank));
  ASSERT_EQ(checkpoint.sharded().size(), 4u);
  EXPECT_TRUE(torch::equal(checkpoint.read("weight", 0, 1001), torch::arange(seed, seed + 1001, at::kFloat)));
  EXPECT_TRUE(torch::equal(checkpoint.read("few", 0, 2), torch::arange(seed, seed + 2)));
  EXPECT_EQ(checkpoint.read("empty", 0, 0).numel(), 0);
  EXPECT_TRUE(checkpoint.read("only on the last", 0, 6).all().item<bool>());
  EXPECT_EQ(checkpoint.sharded("only on the last").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(checkpoint.sharded("few").dtype, at::kLong);
}

TEST(WriteCheckpoint, ComesBackToTheBitAtEveryWorldSize) {
  for (int world = 1; world <= 4; ++world) {
    ScratchFolder folder;
    testing::run_threads(world, 0, [&](comm::Communicator group) {
      const auto path = write_checkpoint(contents_of(group.rank(), world, 7), folder / "x", group, kQuickly);
      EXPECT_EQ(path, folder / "x");
    });
    expect_contents(folder / "x", world, 7);
    expect_contents(folder / "x", world, 7, {.check = CheckpointCheck::as_read});
    expect_contents(folder / "x", world, 7, {.map = false});
    EXPECT_EQ(checks::entries(folder.path()), 1u) << "nothing else is left";
    EXPECT_EQ(checks::entries(folder / "x"), 1u + 2u * static_cast<unsigned>(world));
  }
}

TEST(WriteCheckpoint, ComesBackFromTwoProcesses) {
  const fs::path folder = fs::path(MUSTER_BINARY_DIR) / "checkpoint-of-two-processes";
  testing::expect_processes(2, [&](comm::Communicator group) {
    for (std::int64_t seed : {1, 2}) write_checkpoint(contents_of(group.rank(), 2, seed), folder, group);
    EXPECT_EQ(thrown([&] { write_checkpoint({.shards = {shard_of("x", 10, 0, 1, 0)}}, folder, group); }).substr(0, 5),
              "MU214");
  });
  expect_contents(folder, 2, 2);
  fs::remove_all(folder);
}

TEST(WriteCheckpoint, ReplacesAFormerOneOfAnotherWorld) {
  ScratchFolder folder;
  for (int world : {3, 1, 2}) {
    testing::run_threads(world, 0, [&](comm::Communicator group) {
      write_checkpoint(contents_of(group.rank(), world, world), folder / "x", group, kQuickly);
    });
    expect_contents(folder / "x", world, world);
    EXPECT_EQ(checks::entries(folder.path()), 1u);
  }
}

TEST(WriteCheckpoint, MakesFoldersAndTakesNamesInAnyForm) {
  ScratchFolder folder;
  for (const fs::path& path : {folder / "a/b/c", folder / "a/b/../d/", folder / "a/./e//"}) {
    write_checkpoint(contents_of(0, 1, 1), path, {}, kQuickly);
    expect_contents(path, 1, 1);
  }
  fs::create_directory_symlink(folder / "a/b/c", folder / "link");
  write_checkpoint(contents_of(0, 1, 5), folder / "link", {}, kQuickly);
  expect_contents(folder / "a/b/c", 1, 5);
  EXPECT_TRUE(fs::is_symlink(folder / "link")) << "a link stays one";
}

TEST(WriteCheckpoint, SavesEveryDurability) {
  ScratchFolder folder;
  for (const Durability durability : {Durability::none, Durability::file, Durability::full}) {
    write_checkpoint(contents_of(0, 1, 3), folder / "x", {}, {.durability = durability});
    expect_contents(folder / "x", 1, 3);
  }
}

TEST(WriteCheckpoint, WritesTensorsThatShareTheirMemoryOnce) {
  ScratchFolder folder;
  const auto large = torch::rand(1 << 18);
  write_checkpoint({.shared = State::Map{{"one", large}, {"other", large.detach()}, {"part", large.slice(0, 0, 10)}}},
                   folder / "x", {}, kQuickly);
  EXPECT_LT(fs::file_size(folder / "x/rank-00000.safetensors"), (std::size_t{5} << 18));
  const State state = Checkpoint(folder / "x").shared();
  EXPECT_TRUE(torch::equal(state.at("one").tensor(), large) &&
              torch::equal(state.at("part").tensor(), large.slice(0, 0, 10)));
  EXPECT_EQ(state.at("one").tensor().const_data_ptr(), state.at("other").tensor().const_data_ptr());
}

TEST(WriteCheckpoint, TakesTensorsOfEveryLayout) {
  ScratchFolder folder;
  const auto tensor = torch::rand({8, 6});
  const auto complex = torch::view_as_complex(torch::rand({5, 2}));
  const CheckpointContents contents{.shared = State::Map{{"turned", tensor.t()},
                                                         {"strided", tensor.slice(1, 0, 6, 2)},
                                                         {"conjugate", complex.conj()},
                                                         {"negative", torch::imag(complex.conj())},
                                                         {"parameter", tensor.clone().requires_grad_()}},
                                    .shards = {{.name = "s", .shape = {6, 8}, .begin = 0, .local = tensor.t()}}};
  write_checkpoint(contents, folder / "x", {}, kQuickly);
  const Checkpoint checkpoint(folder / "x");
  EXPECT_TRUE(identical(checkpoint.shared(), contents.shared));
  EXPECT_TRUE(torch::equal(checkpoint.read("s", 0, 48).view({6, 8}), tensor.t()));
}

TEST(WriteCheckpoint, NamesTensorsThatItCannotHold) {
  ScratchFolder folder;
  const auto save = [&](const State& state) { write_checkpoint({.shared = state}, folder / "x", {}, kQuickly); };
  expect_error<CheckpointError>("MU203", "tensor 'shared/a/b'", [&] {
    save(State::Map{{"a", State::Map{{"b", torch::zeros(2, at::kComplexDouble)}}}});
  });
  expect_error<CheckpointError>("MU203", "meta device",
                                [&] { save(torch::zeros(2, torch::TensorOptions().device(at::kMeta))); });
  State deep;
  for (int i = 0; i < 100; ++i) deep = State::List{deep};
  expect_error<CheckpointError>("MU203", "nested more than 64 deep", [&] { save(deep); });
  EXPECT_EQ(checks::entries(folder.path()), 0u);
}

TEST(WriteCheckpoint, AFailureOfOneRankReachesAll) {
  ScratchFolder folder;
  testing::run_threads(3, 0, [&](comm::Communicator group) {
    write_checkpoint(contents_of(group.rank(), 3, 1), folder / "x", group, kQuickly);
    auto contents = contents_of(group.rank(), 3, 2);
    if (group.rank() == 1) contents.per_rank = torch::zeros(2, at::kComplexDouble);
    expect_error<CheckpointError>("MU203",
                                  "rank 1: ", [&] { write_checkpoint(contents, folder / "x", group, kQuickly); });
  });
  expect_contents(folder / "x", 3, 1);
  EXPECT_EQ(checks::entries(folder.path()), 1u);
}

TEST(WriteCheckpoint, RefusesShardsThatDoNotCoverTheirTensorOnce) {
  ScratchFolder folder;
  const auto save = [&](const TensorShard& one, const TensorShard& other) {
    std::string message;
    testing::run_threads(2, 0, [&](comm::Communicator group) {
      const auto said = thrown(
          [&] { write_checkpoint({.shards = {group.rank() == 0 ? one : other}}, folder / "x", group, kQuickly); });
      if (group.rank() == 0) message = said;
    });
    return message;
  };
  const auto run = [](std::int64_t begin, std::int64_t end) {
    return TensorShard{.name = "w", .shape = {5, 2}, .begin = begin, .local = torch::ones(end - begin)};
  };
  EXPECT_EQ(save(run(0, 5), run(5, 10)), "no error");
  EXPECT_NE(
      save(run(0, 5), run(6, 10)).find("tensor 'w' do not fit together: no rank holds elements 5 to 6 of shape [5, 2]"),
      std::string::npos);
  EXPECT_NE(save(run(0, 6), run(5, 10))
                .find("on rank 1 it has elements 5 to 10 there, which overlap elements 0 to 6 of rank 0"),
            std::string::npos);
  EXPECT_NE(save(run(0, 5), run(5, 9)).find("no rank holds elements 9 to 10"), std::string::npos);
  EXPECT_NE(save(run(0, 5), run(5, 11)).find("beyond its 10"), std::string::npos);
  EXPECT_NE(save(run(0, 5), {.name = "w", .shape = {10}, .begin = 5, .local = torch::ones(5)})
                .find("shape [10] and dtype F32 there, but shape [5, 2]"),
            std::string::npos);
  EXPECT_NE(
      save(run(0, 5), {.name = "w", .shape = {5, 2}, .begin = 5, .local = torch::ones(5, at::kLong)}).find("MU214"),
      std::string::npos);
  EXPECT_EQ(Checkpoint(folder / "x").sharded("w").numel(), 10) << "the good one stays";
}

TEST(WriteCheckpoint, LeavesWhatIsNoCheckpoint) {
  ScratchFolder folder;
  checks::write(folder / "file", "mine");
  expect_error<CheckpointError>("MU212", "is a file", [&] { write_checkpoint({}, folder / "file", {}, kQuickly); });
  fs::create_directory(folder / "runs");
  checks::write(folder / "runs/notes.txt", "mine");
  expect_error<CheckpointError>("MU212", "files of others (notes.txt)",
                                [&] { write_checkpoint({}, folder / "runs", {}, kQuickly); });
  EXPECT_EQ(checks::read(folder / "runs/notes.txt"), "mine");
  fs::create_directory(folder / "empty");
  write_checkpoint(contents_of(0, 1, 1), folder / "empty", {}, kQuickly);
  expect_contents(folder / "empty", 1, 1);
}

TEST(WriteCheckpoint, RefusesASecondWriterAndNamesTheFirst) {
  ScratchFolder folder;
  const std::string first = "process " + std::to_string(::getpid()) + " on ";
  {
    const format::FolderLock lock(folder / "x");
    expect_error<CheckpointError>("MU211", first, [&] { write_checkpoint({}, folder / "x", {}, kQuickly); });
    write_checkpoint({}, folder / "y", {}, kQuickly);
  }
  write_checkpoint({}, folder / "x", {}, kQuickly);
}

TEST(NumberedCheckpoints, GoOnAfterTheHighestAndKeepTheLast) {
  ScratchFolder folder;
  const auto save = [&](std::int64_t seed, int limit) {
    std::string name;
    testing::run_threads(2, 0, [&](comm::Communicator group) {
      const auto path = write_checkpoint(contents_of(group.rank(), 2, seed), folder / "all", group,
                                         {.durability = Durability::none, .numbered = true, .total_limit = limit});
      if (group.rank() == 1) name = path.filename();
    });
    return name;
  };
  EXPECT_EQ(latest_checkpoint(folder / "all"), std::nullopt);
  EXPECT_EQ(save(1, 0), "checkpoint_0");
  EXPECT_EQ(save(2, 0), "checkpoint_1");
  fs::create_directory(folder / "all/checkpoint_9");
  EXPECT_EQ(latest_checkpoint(folder / "all"), folder / "all/checkpoint_1")
      << "an empty folder is not a complete checkpoint";
  EXPECT_EQ(save(3, 0), "checkpoint_10");
  EXPECT_EQ(save(4, 2), "checkpoint_11");
  EXPECT_EQ(checks::entries(folder / "all"), 3u) << "the empty folder is somebody else's";
  expect_contents(*latest_checkpoint(folder / "all"), 2, 4);
  expect_contents(folder / "all/checkpoint_10", 2, 3);
  fs::remove(folder / "all/checkpoint_11/rank-00001.safetensors");
  EXPECT_EQ(latest_checkpoint(folder / "all"), folder / "all/checkpoint_10");
}

fs::path save_numbered(const fs::path& folder, int limit) {
  return write_checkpoint(contents_of(0, 1, 1), folder, {},
                          {.durability = Durability::none, .numbered = true, .total_limit = limit});
}

TEST(NumberedCheckpoints, OnlyCheckpointsOfOursAreRemoved) {
  ScratchFolder folder;
  const fs::path all = folder / "all";
  save_numbered(all, 0);
  save_numbered(all, 0);
  write_checkpoint(contents_of(0, 1, 5), folder / "elsewhere", {}, kQuickly);
  fs::create_directory_symlink(folder / "elsewhere", all / "checkpoint_2");
  fs::create_directory_symlink(folder / "nowhere", all / "checkpoint_3");
  checks::write(all / "checkpoint_4", "somebody's file");
  fs::create_directories(all / "checkpoint_5/src");
  checks::write(all / "checkpoint_5/src/main.cpp", "somebody's folder");
  write_checkpoint(contents_of(0, 1, 6), all / "checkpoint_6", {}, kQuickly);
  checks::write(all / "checkpoint_6/notes.txt", "somebody's notes");
  write_checkpoint(contents_of(0, 1, 7), all / "checkpoint_7", {}, kQuickly);
  fs::rename(all / "checkpoint_7/manifest.json", folder / "manifest.json");
  fs::create_symlink(folder / "manifest.json", all / "checkpoint_7/manifest.json");
  checks::write(all / "checkpoint_08", "no number of ours");
  EXPECT_EQ(save_numbered(all, 1), all / "checkpoint_8");
  for (const char* gone : {"checkpoint_0", "checkpoint_1"}) EXPECT_FALSE(fs::exists(all / gone)) << gone;
  EXPECT_TRUE(fs::is_symlink(all / "checkpoint_2") && fs::is_symlink(all / "checkpoint_3"));
  EXPECT_EQ(checks::read(all / "checkpoint_4"), "somebody's file");
  EXPECT_EQ(checks::read(all / "checkpoint_5/src/main.cpp"), "somebody's folder");
  EXPECT_EQ(checks::read(all / "checkpoint_6/notes.txt"), "somebody's notes");
  EXPECT_TRUE(fs::exists(all / "checkpoint_7/rank-00000.json"));
  EXPECT_EQ(checks::read(all / "checkpoint_08"), "no number of ours");
  expect_contents(folder / "elsewhere", 1, 5);
  expect_contents(all / "checkpoint_8", 1, 1);
}

TEST(NumberedCheckpoints, WhatWritersLeftIsNotClearedThroughALink) {
  ScratchFolder folder;
  write_checkpoint(contents_of(0, 1, 5), folder / "elsewhere", {}, kQuickly);
  fs::create_directory_symlink(folder / "elsewhere", folder / ".x.abcdefgh.former");
  fs::create_directory_symlink(folder / "elsewhere", folder / ".x.abcdefgh.partial");
  checks::write(folder / ".x.abcdefgi.partial", "a file");
  EXPECT_EQ(format::find_folder(folder / "x"), folder / "x") << "a link is nobody's former checkpoint";
  write_checkpoint(contents_of(0, 1, 1), folder / "x", {}, kQuickly);
  EXPECT_FALSE(fs::is_symlink(folder / "x"));
  EXPECT_TRUE(fs::is_symlink(folder / ".x.abcdefgh.former") && fs::is_symlink(folder / ".x.abcdefgh.partial"));
  expect_contents(folder / "elsewhere", 1, 5);
}

TEST(NumberedCheckpoints, TheNumbersMayEnd) {
  ScratchFolder folder;
  fs::create_directories(folder / "all/checkpoint_999999999999999999");
  expect_error<CheckpointError>("MU202", "no number left", [&] { save_numbered(folder / "all", 0); });
  fs::create_directories(folder / "more/checkpoint_9223372036854775807");
  EXPECT_EQ(save_numbered(folder / "more", 0), folder / "more/checkpoint_0");
}

TEST(NumberedCheckpoints, ATruncatedOneIsPassedOverAndSaid) {
  ScratchFolder folder;
  for (int i = 0; i < 4; ++i) save_numbered(folder.path(), 0);
  fs::resize_file(folder / "checkpoint_3/rank-00000.safetensors",
                  fs::file_size(folder / "checkpoint_3/rank-00000.safetensors") - 1);
  fs::resize_file(folder / "checkpoint_2/rank-00000.json", fs::file_size(folder / "checkpoint_2/rank-00000.json") - 1);
  fs::remove(folder / "checkpoint_1/manifest.json");
  ::testing::internal::CaptureStderr();
  const auto latest = latest_checkpoint(folder.path());
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(latest, folder / "checkpoint_0");
  for (const char* words :
       {"checkpoint_3 is passed over, since it is not a whole checkpoint: MU213", "rank-00000.safetensors has ",
        "checkpoint_2 is passed over", "checkpoint_1 is passed over, since it is not a whole checkpoint: MU210"})
    EXPECT_NE(said.find(words), std::string::npos) << words << " in:\n" << said;
}

}  // namespace
}  // namespace muster
