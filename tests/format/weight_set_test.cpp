#include "format/weight_set.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checks.h"
#include "format/input_file.h"

namespace {

/// How many more changes of names this process may make before it is killed; never, if negative.
int steps_left = -1;

void count_step() {
  if (steps_left == 0) ::kill(::getpid(), SIGKILL);
  if (steps_left > 0) --steps_left;
}

}  // namespace

// These stand in front of the C library's own, for this program and for the libraries it uses.
extern "C" int rename(const char* from, const char* to) noexcept {
  count_step();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int link(const char* from, const char* to) noexcept {
  count_step();
  return static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int remove(const char* path) noexcept {
  count_step();
  if (::syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0) return 0;
  return errno == EISDIR ? static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR)) : -1;
}

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
  for (const fs::path& file : set.files)
    EXPECT_EQ(checks::read(file), word) << "files of two sets under one index: " << file;
  return {word, set.files.size()};
}

std::size_t weight_files(const fs::path& folder) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    count += is_weight_file_name(entry.path().filename().string());
  return count;
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

TEST(WeightSet, OfAnotherNameIsNamed) {
  ScratchFolder folder;
  for (const char* name : {"best.pt", "notes.txt", "adapter.safetensors"}) checks::write(folder / name, "x");
  expect_error<CheckpointError>("MU200", "name one of what is there: adapter.safetensors, best.pt",
                                [&] { find_weight_set(folder.path()); });
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

/// Publishes in a process that is killed just before its `step`-th change of names. Returns whether it came to its end.
bool publish_until(int step, const fs::path& folder, std::size_t count, const std::string& word) {
  const pid_t child = ::fork();
  if (child == 0) {
    steps_left = step;
    publish(folder, count, word);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Kills a save at each of its steps in turn. Returns the number of steps.
int kill_at_every_step(std::size_t former_count, std::size_t count) {
  for (int step = 0;; ++step) {
    ScratchFolder folder;
    publish(folder.path(), former_count, "former");
    const bool complete = publish_until(step, folder.path(), count, "new");
    const auto found = held(folder.path());
    const std::pair former(std::string("former"), former_count), fresh(std::string("new"), count);
    EXPECT_TRUE(found == fresh || (!complete && found == former))
        << former_count << " files, then " << count << ", killed at step " << step << ": holds " << found.second
        << " of " << found.first;
    publish(folder.path(), 2, "last");
    EXPECT_EQ(held(folder.path()), std::pair(std::string("last"), std::size_t{2}));
    EXPECT_EQ(weight_files(folder.path()), 2u) << "the next save must remove what the killed one left";
    if (complete) return step;
  }
}

TEST(WeightSet, IsNeverTornByAKillAtAnyStep) {
  for (std::size_t former = 1; former <= 3; ++former)
    for (std::size_t count = 1; count <= 3; ++count)
      EXPECT_GE(kill_at_every_step(former, count), static_cast<int>(count));
  EXPECT_GE(kill_at_every_step(3, 3), 3 + 3 + 2 + 3) << "second names, files, two indices, and clearing up";
}

TEST(WeightSet, IsNeverTornByTwoKillsInARow) {
  for (int first = 0; first < 10; ++first)
    for (int second = 0; second < 10; ++second) {
      ScratchFolder folder;
      publish(folder.path(), 2, "zeroth");
      publish_until(first, folder.path(), 2, "first");
      publish_until(second, folder.path(), 2, "second");
      EXPECT_EQ(held(folder.path()).second, 2u) << "killed at steps " << first << " and " << second;
    }
}

/// Runs `f` in processes of their own, with their numbers. Returns whether all came to their end.
bool in_processes(int count, const std::function<void(int)>& f) {
  std::vector<pid_t> children;
  for (int number = 0; number < count; ++number) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      f(number);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  bool all = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    all = all && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  return all;
}

TEST(WeightSet, IsThatOfOneOfSeveralWriters) {
  for (const auto& counts : {std::array<std::size_t, 3>{3, 1, 3}, {3, 3, 3}, {2, 3, 1}})
    for (int trial = 0; trial < 16; ++trial) {
      ScratchFolder folder;
      if (trial % 2) publish(folder.path(), 3, "former");
      EXPECT_TRUE(in_processes(3, [&](int number) {
        for (int i = 0; i < 2; ++i)
          publish(folder.path(), counts[static_cast<std::size_t>(number)], "writer" + std::to_string(number));
      }));
      const auto [word, count] = held(folder.path());
      ASSERT_TRUE(word.starts_with("writer")) << word;
      EXPECT_EQ(count, counts[static_cast<std::size_t>(word.back() - '0')]);
      EXPECT_EQ(weight_files(folder.path()), count);
    }
}

TEST(WeightSet, IsReadWholeWhileAnotherIsWritten) {
  ScratchFolder folder;
  publish(folder.path(), 3, "0");
  EXPECT_TRUE(in_processes(2, [&](int number) {
    for (int i = 0; i < 120; ++i) {
      if (number == 0) {
        publish(folder.path(), 2 + static_cast<std::size_t>(i % 2), std::to_string(i));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      std::set<std::string> words;
      open_weight_set(folder.path(), [&](const WeightSet& set) {
        words.clear();
        for (const auto& file : set.files) words.insert(InputFile(file).read_text(100));
      });
      EXPECT_EQ(words.size(), 1u);
    }
  }));
}

TEST(WeightSet, AFileThatIsMissingIsRefusedAtOnce) {
  ScratchFolder folder;
  int calls = 0;
  expect_error<CheckpointError>("MU200", "cannot be opened", [&] {
    open_weight_set(folder / "x.safetensors", [&](const WeightSet& set) {
      ++calls;
      const InputFile file(set.files.front());
    });
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace muster::format
