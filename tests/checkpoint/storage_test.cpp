#include <signal.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "checkpoint/object_store.h"
#include "comm/thread_world.h"
#include "format/checks.h"
#include "muster/base/error.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::storage {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;
using testing::thrown;

using Store = std::shared_ptr<ObjectStore>;

CheckpointContents contents_of(int rank, int world, std::int64_t seed) {
  return {.shared = State::Map{{"values", every_kind_of_state(seed)}, {"mask", torch::arange(40) % 2 == 0}},
          .per_rank = State::Map{{"rank", rank}, {"large", torch::full({400'000}, static_cast<double>(rank + seed))}},
          .shards = {shard_of("w", 700'001, rank, world, seed), shard_of("counts", 10, rank, world, seed, at::kLong)}};
}

fs::path save(const Store& store, const fs::path& name, int world, std::int64_t seed, bool numbered = false,
              int total_limit = 0) {
  fs::path path;
  testing::run_threads(world, 0, [&](comm::Communicator group) {
    const auto saved = write_checkpoint(contents_of(group.rank(), world, seed), name, group,
                                        {.numbered = numbered, .storage = store, .total_limit = total_limit});
    if (group.rank() == 0) path = saved;
  });
  return path;
}

void expect_contents(const Checkpoint& checkpoint, int world, std::int64_t seed) {
  ASSERT_EQ(checkpoint.world_size(), world);
  EXPECT_TRUE(identical(checkpoint.shared(), contents_of(0, world, seed).shared));
  for (int rank = 0; rank < world; ++rank)
    EXPECT_TRUE(identical(checkpoint.per_rank(rank), contents_of(rank, world, seed).per_rank)) << rank;
  EXPECT_TRUE(torch::equal(checkpoint.read("w", 0, 700'001), torch::arange(seed, seed + 700'001, at::kFloat)));
  EXPECT_TRUE(torch::equal(checkpoint.read("counts", 3, 8), torch::arange(seed + 3, seed + 8)));
}

TEST(CheckpointStorage, HoldsWhatWasSavedHoweverItIsChecked) {
  for (int world = 1; world <= 3; ++world) {
    ScratchFolder folder;
    const auto store = std::make_shared<ObjectStore>(folder / "bucket");
    EXPECT_EQ(save(store, "./run/x/", world, 7), "run/x");
    EXPECT_EQ(store->keys().size(), 2u + 2u * static_cast<std::size_t>(world))
        << "an id, a manifest, two for each rank";
    for (const auto check : {CheckpointCheck::everything, CheckpointCheck::as_read, CheckpointCheck::layout})
      expect_contents(Checkpoint("run/x", {.check = check, .storage = store}), world, 7);
    for (int part = 0; part < 2; ++part)
      expect_contents(
          Checkpoint("run/x", {.check = CheckpointCheck::share, .part = part, .parts = 2, .storage = store}), world, 7);
  }
}

TEST(CheckpointStorage, HasTheBytesOfAFolder) {
  ScratchFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket");
  save(store, "x", 1, 3);
  write_checkpoint(contents_of(0, 1, 3), folder / "x", {}, kQuickly);
  const auto data = store->key_of("x", store->get("x"), "rank-00000.safetensors");
  EXPECT_EQ(store->get(data), checks::read(folder / "x/rank-00000.safetensors"));
}

TEST(CheckpointStorage, ASaveReplacesTheFormerOneAsAWhole) {
  ScratchFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket");
  save(store, "x", 3, 1);
  save(store, "x", 2, 2);
  expect_contents(Checkpoint("x", {.storage = store}), 2, 2);
  EXPECT_EQ(store->keys().size(), 6u);
}

TEST(CheckpointStorage, NumbersFollowTheHighestAndTheLowestGo) {
  ScratchFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket");
  EXPECT_EQ(latest_checkpoint("all", store), std::nullopt);
  store->put("all/checkpoint_1", "no id of ours");
  for (int seed = 2; seed < 6; ++seed)
    EXPECT_EQ(save(store, "all", 2, seed, true, 2), "all/checkpoint_" + std::to_string(seed));
  auto names = store->list("all");
  EXPECT_EQ(names, (std::vector<std::string>{"checkpoint_1", "checkpoint_4", "checkpoint_5"})) << "others stay";
  EXPECT_EQ(latest_checkpoint("./all", store), "all/checkpoint_5");
  expect_contents(Checkpoint("all/checkpoint_5", {.storage = store}), 2, 5);
  EXPECT_EQ(save(store, ".", 1, 0, true), "checkpoint_0");
}

TEST(CheckpointStorage, AFailureOfAnyFunctionIsTheErrorOfAllRanks) {
  for (const std::string function : {"begin", "create", "write", "close", "commit", "list"}) {
    ScratchFolder folder;
    bool fails = false;
    const auto store =
        std::make_shared<ObjectStore>(folder / "bucket", [&](const std::string& name, const std::string& key) {
          const bool here = name == "begin" || name == "commit" || name == "list" || key.find("rank-00001") != key.npos;
          if (fails && name == function && here) throw std::runtime_error("the bucket is gone");
        });
    save(store, "all", 2, 1, true);
    fails = true;
    std::vector<std::string> messages(2);
    testing::run_threads(2, 0, [&](comm::Communicator group) {
      messages[static_cast<std::size_t>(group.rank())] = thrown([&] {
        write_checkpoint(contents_of(group.rank(), 2, 2), "all", group, {.numbered = true, .storage = store});
      });
    });
    fails = false;
    for (const auto& message : messages) {
      EXPECT_EQ(message.substr(0, 5), "MU313") << function << ": " << message;
      EXPECT_NE(message.find("failed in " + function + "() of"), std::string::npos) << message;
      EXPECT_NE(message.find("the bucket is gone"), std::string::npos) << message;
    }
    EXPECT_EQ(latest_checkpoint("all", store), "all/checkpoint_0") << function;
    EXPECT_EQ(store->keys().size(), function == "commit" ? 11u : 6u) << "what is left of it after " << function;
    EXPECT_EQ(save(store, "all", 2, 3, true), "all/checkpoint_1");
    EXPECT_EQ(store->keys().size(), 12u) << function;
    expect_contents(Checkpoint("all/checkpoint_1", {.storage = store}), 2, 3);
  }
}

TEST(CheckpointStorage, AFailureWhileOldOnesAreRemovedIsOnlyLogged) {
  ScratchFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket", [](const std::string& name, const std::string&) {
    if (name == "remove") throw 5;
  });
  for (int seed = 0; seed < 3; ++seed) save(store, "all", 1, seed, true, 1);
  EXPECT_EQ(latest_checkpoint("all", store), "all/checkpoint_2");
  EXPECT_EQ(store->list("all").size(), 3u);
}

TEST(CheckpointStorage, WhatCannotBeReadIsNeitherTrustedNorPassedOver) {
  ScratchFolder folder;
  std::string fails;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket", [&](const std::string& name, const std::string&) {
    if (name == fails) throw std::runtime_error("no answer");
  });
  for (int seed = 0; seed < 2; ++seed) save(store, "all", 1, seed, true);
  const ReadCheckpointOptions options{.storage = store};
  for (const char* function : {"size", "read"}) {
    fails = function;
    expect_error<CheckpointError>("MU314", "no answer", [&] { Checkpoint("all/checkpoint_1", options); });
    expect_error<CheckpointError>("MU314", "no answer", [&] { latest_checkpoint("all", store); });
  }
  fails = "list";
  expect_error<CheckpointError>("MU314", "list() of 'all'", [&] { latest_checkpoint("all", store); });
  fails = "";
  expect_error<CheckpointError>("MU210", "in the program's storage", [&] { Checkpoint("all/checkpoint_7", options); });

  const auto data = store->key_of("all/checkpoint_1", store->get("all/checkpoint_1"), "rank-00000.safetensors");
  const auto bytes = store->get(data);
  auto damaged = bytes;
  damaged[damaged.size() - 5] ^= 1;
  store->put(data, damaged);
  expect_error<CheckpointError>("MU213", "not the bytes", [&] { Checkpoint("all/checkpoint_1", options); });
  store->put(data, bytes.substr(1));
  expect_error<CheckpointError>("MU213", "bytes, not the", [&] { Checkpoint("all/checkpoint_1", options); });
  EXPECT_EQ(latest_checkpoint("all", store), "all/checkpoint_0");
  fs::remove(store->path_of(data));
  expect_error<CheckpointError>("MU213", "no such file", [&] { Checkpoint("all/checkpoint_1", options); });
}

TEST(CheckpointStorage, NamesAndRanksThatDoNotFitAreRefused) {
  ScratchFolder folder;
  const auto store = std::make_shared<ObjectStore>(folder / "bucket");
  for (const char* name : {"", ".", "..", "../x", "x/../.."})
    EXPECT_EQ(thrown([&] { write_checkpoint({}, name, {}, {.storage = store}); }).substr(0, 5), "MU317") << name;
  testing::run_threads(2, 0, [&](comm::Communicator group) {
    for (int without = 0; without < 2; ++without) {
      WriteCheckpointOptions options = kQuickly;
      if (group.rank() != without) options.storage = store;
      const auto message = thrown([&] { write_checkpoint({}, folder / "x", group, options); });
      EXPECT_EQ(message.substr(0, 5), "MU316") << message;
      EXPECT_NE(message.find("rank 1: this rank saves to"), std::string::npos) << message;
    }
  });
  EXPECT_TRUE(store->keys().empty());
  EXPECT_FALSE(fs::exists(folder / "x"));
}

TEST(CheckpointStorage, IsWrittenWhileTrainingGoesOn) {
  ScratchFolder folder;
  std::atomic<bool> fails = false;
  const auto store =
      std::make_shared<ObjectStore>(folder / "bucket", [&](const std::string& name, const std::string& key) {
        if (fails && name == "close" && key.find("rank-00001") != key.npos)
          throw std::runtime_error("the bucket is gone");
      });
  testing::run_threads(2, 0, [&](comm::Communicator group) {
    CheckpointWriter writer(group, {.numbered = true, .storage = store, .total_limit = 2});
    for (int seed = 0; seed < 4; ++seed) writer.start(contents_of(group.rank(), 2, seed), "all");
    EXPECT_EQ(writer.wait(), "all/checkpoint_3");
    group.barrier();
    fails = true;
    group.barrier();
    writer.start(contents_of(group.rank(), 2, 9), "all");
    const auto message = thrown([&] { writer.wait(); });
    EXPECT_EQ(message.substr(0, 5), "MU313") << message;
    EXPECT_NE(message.find("rank 1: "), std::string::npos) << message;
  });
  EXPECT_EQ(store->list("all"), (std::vector<std::string>{"checkpoint_2", "checkpoint_3"}));
  expect_contents(Checkpoint(*latest_checkpoint("all", store), {.storage = store}), 2, 3);
}

TEST(CheckpointStorage, ARankKilledInASaveLeavesNothingThatIsListed) {
  ScratchFolder folder;
  const auto bucket = folder / "bucket";
  ::setenv("MUSTER_TEST_BUCKET", bucket.c_str(), 0);
  const auto results = testing::run_test_processes(2, [](comm::Communicator group) {
    bool dies = false;
    const auto store = std::make_shared<ObjectStore>(
        ::getenv("MUSTER_TEST_BUCKET"), [&](const std::string& name, const std::string& key) {
          if (dies && name == "close" && key.find("rank-00001.json") != key.npos) ::raise(SIGKILL);
        });
    const WriteCheckpointOptions options{.numbered = true, .storage = store};
    write_checkpoint(contents_of(group.rank(), 2, 1), "all", group, options);
    dies = true;
    EXPECT_THROW(write_checkpoint(contents_of(group.rank(), 2, 2), "all", group, options), Error);
  });
  ::unsetenv("MUSTER_TEST_BUCKET");
  EXPECT_EQ(results[1].signal, SIGKILL) << results[1].output;
  EXPECT_TRUE(results[0].ok()) << results[0].output;
  const auto store = std::make_shared<ObjectStore>(bucket);
  EXPECT_EQ(store->list("all"), (std::vector<std::string>{"checkpoint_0"}));
  expect_contents(Checkpoint(*latest_checkpoint("all", store), {.storage = store}), 2, 1);
  save(store, "all", 2, 3, true);
  EXPECT_EQ(store->keys().size(), 12u) << "what was left is cleared up";
}

}  // namespace
}  // namespace muster::storage
