#include "muster/format/weight_set.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <random>

#include "checks.h"

namespace muster::format {
namespace {

namespace fs = std::filesystem;
using checks::expect_error;
using checks::ScratchFolder;

/// Publishes a set of `count` files that all hold `word`.
void publish(const fs::path& folder, std::size_t count, const std::string& word) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  WeightIndex index;
  for (std::size_t i = 0; i < count; ++i) {
    files.push_back(std::make_unique<AtomicFile>(folder / shard_name(i, count), Durability::none));
    files.back()->write(std::array{std::string_view(word)});
    index.file_of["t" + std::to_string(i)] = shard_name(i, count);
    index.total_bytes += word.size();
  }
  publish_weight_set(folder, files, count > 1 ? std::optional(index) : std::nullopt, Durability::none);
}

/// The word that every file of the set in force holds, with the number of files.
std::pair<std::string, std::size_t> held(const fs::path& folder) {
  const WeightSet set = find_weight_set(folder);
  const std::string word = checks::read(set.files.at(0));
  for (const fs::path& file : set.files) EXPECT_EQ(checks::read(file), word) << "files of two sets under one index: " << file;
  return {word, set.files.size()};
}

TEST(WeightSet, IsFoundByFileIndexAndFolder) {
  ScratchFolder folder;
  EXPECT_EQ(find_weight_set(folder / "any.safetensors").files, std::vector{folder / "any.safetensors"});
  expect_error<CheckpointError>("MU200", "neither model.safetensors nor", [&] { find_weight_set(folder.path()); });
  expect_error<CheckpointError>("MU200", "cannot be opened", [&] { find_weight_set(folder / "no.json"); });
  publish(folder.path(), 2, "two");
  EXPECT_EQ(find_weight_set(folder / kWeightIndexName).files.size(), 2u);
  EXPECT_EQ(find_weight_set(folder.path()).files.at(1), folder / "model-00002-of-00002.safetensors");
  publish(folder.path(), 1, "one");
  EXPECT_EQ(find_weight_set(folder.path()).files, std::vector{folder / kWeightsName});
}

TEST(WeightSet, ReplacesTheFormerAndLeavesOtherFiles) {
  ScratchFolder folder;
  checks::write(folder / "notes.txt", "mine");
  checks::write(folder / "other.safetensors", "mine");
  for (const std::size_t count : {1, 3, 3, 2, 5, 1, 1, 4}) {
    const std::string word = "set of " + std::to_string(count);
    publish(folder.path(), count, word);
    EXPECT_EQ(held(folder.path()), std::pair(word, count));
    EXPECT_EQ(checks::entries(folder.path()), 2 + count + (count > 1 ? 1 : 0));
  }
  EXPECT_EQ(checks::read(folder / "notes.txt"), "mine");
}

TEST(WeightSet, ReplacesABrokenIndex) {
  ScratchFolder folder;
  checks::write(folder / kWeightIndexName, "not JSON");
  publish(folder.path(), 2, "new");
  EXPECT_EQ(held(folder.path()), std::pair(std::string("new"), std::size_t{2}));
}

TEST(WeightSet, IsNeverTornByAKill) {
  ScratchFolder folder;
  publish(folder.path(), 3, "set 0");
  std::mt19937 random(7);
  int unlike = 0;
  for (int kill = 0; kill < 60; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 1;; ++i) {
        publish(folder.path(), std::array<std::size_t, 5>{3, 3, 1, 2, 3}[i % 5], "set " + std::to_string(i));
        if (::write(ends[1], "x", 1) != 1) ::_exit(1);
      }
    }
    ::close(ends[1]);
    char byte;
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    ::usleep(random() % 2000);  // a place in the middle of a save, anywhere
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(ends[0]);
    const auto [word, count] = held(folder.path());
    EXPECT_EQ(word.substr(0, 4), "set ") << "kill " << kill;
    unlike += checks::entries(folder.path()) != count + (count > 1 ? 1 : 0);
  }
  EXPECT_GT(unlike, 0) << "no kill fell into a save: the test shows nothing";
  publish(folder.path(), 2, "last");
  EXPECT_EQ(held(folder.path()).first, "last");
}

}  // namespace
}  // namespace muster::format
