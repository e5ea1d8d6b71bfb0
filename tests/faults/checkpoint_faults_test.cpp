#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "faults/forked_saves.h"
#include "format/atomic_folder.h"
#include "format/checks.h"
#include "muster/base/error.h"

// What becomes of checkpoints when processes are killed at any place. Each kill happens in a process of its own, forked
// from this one, which therefore starts no threads.

namespace {

/// Shared with forked processes: how many more changes of the disk may be made before the process is killed.
std::atomic<long>& changes_left() {
  static auto* left =
      new (::mmap(nullptr, sizeof(std::atomic<long>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
          std::atomic<long>(-1);
  return *left;
}

bool counts = false;          ///< In this process.
bool exchange_fails = false;  ///< As on a file system that cannot exchange folders.

/// Whether the process is to be killed at this change.
bool is_last_change() { return counts && changes_left().fetch_sub(1) == 0; }

void before_change() {
  if (is_last_change()) ::kill(::getpid(), SIGKILL);
}

}  // namespace

// These stand in front of the C library's own, for this program and for the libraries it uses.
extern "C" {
ssize_t writev(int descriptor, const iovec* pieces, int count) {
  if (is_last_change()) {
    const iovec half{pieces[0].iov_base, pieces[0].iov_len / 2};
    ::syscall(SYS_writev, descriptor, &half, 1);
    ::kill(::getpid(), SIGKILL);
  }
  return ::syscall(SYS_writev, descriptor, pieces, count);
}
int fallocate(int descriptor, int mode, off_t offset, off_t bytes) {
  before_change();
  return static_cast<int>(::syscall(SYS_fallocate, descriptor, mode, offset, bytes));
}
int fsync(int descriptor) {
  before_change();
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
int rename(const char* from, const char* to) noexcept {
  before_change();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  before_change();
  if (exchange_fails && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}
int mkdir(const char* path, mode_t mode) noexcept {
  before_change();
  return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}
int unlink(const char* path) noexcept {
  before_change();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  before_change();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}
}

namespace muster::faults {
namespace {

using checks::ScratchFolder;

/// Saves `seed` in a process of its own that is killed at its `place`-th change of the disk.
Ended save_until(long place, const fs::path& folder, const Way& way, std::int64_t seed) {
  changes_left() = place;
  return in_a_child([&] {
    exchange_fails = !way.exchanges;
    counts = true;
    save(folder, way, seed);
    return 0;
  });
}

/// What is loaded after a kill must be all of the former or all of the new one, and the next save must clear up.
int look_after_a_kill(const fs::path& scratch, const fs::path& folder, const Way& way, bool killed) {
  std::int64_t seed = 0;
  try {
    seed = seed_in(current(folder, way), way.world);
  } catch (const CheckpointError& error) {
    if (error.id() != "MU210" || way.has_former) throw;
  }
  if (killed ? (seed != 2 && seed != (way.has_former ? 1 : 0)) : seed != 2) {
    std::cerr << "found seed " << seed << std::endl;
    return 1;
  }
  exchange_fails = !way.exchanges;
  save(folder, way, 3);
  if (seed_in(current(folder, way), way.world) != 3) return 2;
  if (checks::entries(scratch) != 1 || (way.numbered && checks::entries(folder) != 1)) {
    for (const auto& entry : fs::recursive_directory_iterator(scratch))
      std::cerr << "left: " << entry.path() << std::endl;
    return 3;
  }
  return 0;
}

/// Changes of the disk that one save makes.
long changes_of(const Way& way) {
  ScratchFolder scratch;
  const fs::path folder = scratch / "x";
  if (way.has_former) expect_well(in_a_child([&] { return save(folder, way, 1), 0; }), way.text());
  constexpr long kMany = 1'000'000;
  expect_well(save_until(kMany, folder, way, 2), way.text());
  return kMany - changes_left();
}

void kill_at(long place, const Way& way) {
  ScratchFolder scratch;
  const fs::path folder = scratch / "x";
  if (way.has_former) expect_well(in_a_child([&] { return save(folder, way, 1), 0; }), way.text());
  const Ended ended = save_until(place, folder, way, 2);
  const std::string what = way.text() + ", killed at change " + std::to_string(place);
  EXPECT_TRUE(ended.signal == SIGKILL || ended.code == 0) << what;
  expect_well(in_a_child([&] { return look_after_a_kill(scratch.path(), folder, way, ended.signal == SIGKILL); }),
              what);
}

TEST_F(CheckpointFaults, AKillAtAnyPlaceLeavesAWholeCheckpoint) {
  std::vector<long> changes;
  for (const Way& way : ways()) changes.push_back(changes_of(way));
  for (std::size_t i = 0; i < changes.size(); ++i) EXPECT_GE(changes[i], 10) << ways()[i].text();
  const int count = places(50, 1000);
  std::mt19937 random(11);
  for (int i = 0; i < count; ++i) {
    const auto way = static_cast<std::size_t>(i) % ways().size();
    // Spread evenly over the save; a random part of a step keeps the places apart in the long run.
    const double place = (i + std::uniform_real_distribution<>(0, 1)(random)) / count;
    kill_at(static_cast<long>(place * static_cast<double>(changes[way])), ways()[way]);
  }
}

TEST_F(CheckpointFaults, AKillAtEachChangeOfNamesLeavesAWholeCheckpoint) {
  // The last changes of a save are those of names: all of them, one after another.
  for (const Way& way : {ways()[0], ways()[3], ways()[4]}) {
    const long changes = changes_of(way);
    for (long place = changes - 14; place < changes; ++place) kill_at(std::max(0L, place), way);
  }
}

TEST_F(CheckpointFaults, TwoKillsInARowLeaveAWholeCheckpoint) {
  for (const Way& way : {ways()[0], ways()[3]}) {
    const long changes = changes_of(way);
    for (int i = 0; i < places(6, 60); ++i) {
      ScratchFolder scratch;
      const fs::path folder = scratch / "x";
      expect_well(in_a_child([&] { return save(folder, way, 1), 0; }), way.text());
      save_until(changes - 1 - i % 12, folder, way, 2);
      save_until((i * 7) % changes, folder, way, 2);
      expect_well(in_a_child([&] { return look_after_a_kill(scratch.path(), folder, way, true); }),
                  way.text() + " " + std::to_string(i));
    }
  }
}

TEST_F(CheckpointFaults, OneOfTwoWritersIsRefusedUntilTheOtherEnds) {
  ScratchFolder scratch;
  const Way way{.world = 1};
  expect_well(in_a_child([&] { return save(scratch / "x", way, 1), 0; }), "the former");
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t writer = ::fork();
  if (writer == 0) {
    // Stops in the middle of its save, holding the lock, until it is killed.
    const format::AtomicFolder held(scratch / "x", Durability::none, [](std::string_view) { return true; });
    if (::write(ready[1], "r", 1) == 1) ::pause();
    ::_exit(1);
  }
  ::close(ready[1]);
  char word = 0;
  const bool holds = ::read(ready[0], &word, 1) == 1;
  ::close(ready[0]);
  ASSERT_TRUE(holds);
  expect_well(in_a_child([&] {
                try {
                  save(scratch / "x", way, 2);
                } catch (const CheckpointError& error) {
                  return error.id() == "MU211" &&
                                 std::string(error.what()).find("process " + std::to_string(writer) + " on ") !=
                                     std::string::npos
                             ? 0
                             : 1;
                }
                return 2;
              }),
              "while the other writes");
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  expect_well(in_a_child([&] { return seed_in(scratch / "x", 1) == 1 ? 0 : 1; }), "after the kill");
  expect_well(in_a_child([&] { return look_after_a_kill(scratch.path(), scratch / "x", way, true); }),
              "the lock is gone with its owner");
}

}  // namespace
}  // namespace muster::faults
