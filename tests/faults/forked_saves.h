#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"

// Ways to save, and saves and loads in processes of their own, forked from the test, which therefore starts no threads.

namespace muster::faults {

namespace fs = std::filesystem;

/// 50, or as many as the thorough run of all tests asks for.
inline int places(int usual, int full) { return std::getenv("MUSTER_TEST_FULL") ? full : usual; }

/// One way to save.
struct Way {
  int world = 1;
  bool asynchronous = false, exchanges = true, has_former = true, numbered = false;
  Durability durability = Durability::none;

  std::string text() const {
    return std::to_string(world) + " ranks" + (asynchronous ? ", asynchronous" : "") +
           (exchanges ? "" : ", without exchange") + (has_former ? "" : ", without a former one") +
           (numbered ? ", numbered" : "") + ", durability " + std::to_string(static_cast<int>(durability));
  }
};

inline constexpr std::int64_t kElements = 400'000;

inline CheckpointContents contents_of(int rank, int world, std::int64_t seed) {
  return {.shared = State::Map{{"seed", seed}, {"weight", torch::full({300'000}, static_cast<double>(seed))}},
          .per_rank = State::Map{{"rank", rank}, {"seed", seed}, {"generator", torch::full({1000}, seed, at::kLong)}},
          .shards = {shard_of("w", kElements, rank, world, seed)}};
}

inline void save(const fs::path& folder, const Way& way, std::int64_t seed) {
  const WriteCheckpointOptions options{
      .durability = way.durability, .numbered = way.numbered, .total_limit = way.numbered ? 1 : 0};
  const auto failures = comm::run_thread_world(way.world, {}, [&](comm::Communicator group) {
    const auto contents = contents_of(group.rank(), way.world, seed);
    if (!way.asynchronous) {
      write_checkpoint(contents, folder, group, options);
      return;
    }
    CheckpointWriter writer(group, options);
    writer.start(contents, folder);
    writer.wait();
  });
  for (const auto& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

/// The seed that all of a checkpoint is of. Throws: what opening it throws.
inline std::int64_t seed_in(const fs::path& folder, int world) {
  const Checkpoint checkpoint(folder);
  const std::int64_t seed = checkpoint.shared().at("seed").integer();
  if (checkpoint.world_size() != world) throw UsageError("MU000", "wrong world size");
  for (int rank = 0; rank < world; ++rank) {
    const auto expected = contents_of(rank, world, seed);
    if (!identical(checkpoint.per_rank(rank), expected.per_rank))
      throw UsageError("MU000", "the own state is of another save");
    if (!identical(checkpoint.shared(), expected.shared))
      throw UsageError("MU000", "the shared state is of another save");
  }
  if (!torch::equal(checkpoint.read("w", 0, kElements), torch::arange(seed, seed + kElements, at::kFloat)))
    throw UsageError("MU000", "shards are of another save");
  return seed;
}

struct Ended {
  int code = 0;
  int signal = 0;
};

/// Runs `action` in a process of its own.
template <class Action>
Ended in_a_child(Action&& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 99;
    try {
      at::set_num_threads(1);  // LibTorch mends its thread pool after a fork in the first such call, which must not
                               // come from two threads
      code = action();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

inline void expect_well(const Ended& ended, const std::string& what) {
  EXPECT_EQ(ended.signal, 0) << what;
  EXPECT_EQ(ended.code, 0) << what;
}

/// The checkpoint that a program would load now.
inline fs::path current(const fs::path& folder, const Way& way) {
  return way.numbered ? latest_checkpoint(folder).value_or(folder / "none") : folder;
}

inline const std::vector<Way>& ways() {
  static const std::vector<Way> all{
      {.world = 1},
      {.world = 2, .durability = Durability::full},
      {.world = 2, .has_former = false},
      {.world = 1, .exchanges = false},
      {.world = 3, .numbered = true},
      {.world = 2, .asynchronous = true},
      {.world = 1, .asynchronous = true, .exchanges = false, .durability = Durability::file},
      {.world = 1, .has_former = false, .numbered = true}};
  return all;
}

class CheckpointFaults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

}  // namespace muster::faults
