#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "checkpoint/checkpoint_cases.h"
#include "format/checks.h"
#include "muster/base/error.h"
#include "muster/comm/thread_world.h"
#include "muster/format/atomic_folder.h"

// What becomes of checkpoints when processes are killed, disks are full and files are damaged. Each fault happens in a
// process of its own, forked from this one, which therefore starts no threads.

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

namespace muster {
namespace {

namespace fs = std::filesystem;
using checks::ScratchFolder;

/// 50, or as many as the thorough run of all tests asks for.
int places(int usual, int full) { return std::getenv("MUSTER_TEST_FULL") ? full : usual; }

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

constexpr std::int64_t kElements = 400'000;

CheckpointContents contents_of(int rank, int world, std::int64_t seed) {
  return {.shared = State::Map{{"seed", seed}, {"weight", torch::full({300'000}, static_cast<double>(seed))}},
          .own = State::Map{{"rank", rank}, {"seed", seed}, {"generator", torch::full({1000}, seed, at::kLong)}},
          .shards = {shard_of("w", kElements, rank, world, seed)}};
}

void save(const fs::path& folder, const Way& way, std::int64_t seed) {
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
std::int64_t seed_in(const fs::path& folder, int world) {
  const Checkpoint checkpoint(folder);
  const std::int64_t seed = checkpoint.shared().at("seed").integer();
  if (checkpoint.world_size() != world) throw UsageError("MU000", "wrong world size");
  for (int rank = 0; rank < world; ++rank) {
    const auto expected = contents_of(rank, world, seed);
    if (!identical(checkpoint.own(rank), expected.own)) throw UsageError("MU000", "the own state is of another save");
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

void expect_well(const Ended& ended, const std::string& what) {
  EXPECT_EQ(ended.signal, 0) << what;
  EXPECT_EQ(ended.code, 0) << what;
}

/// The checkpoint that a program would load now.
fs::path current(const fs::path& folder, const Way& way) {
  return way.numbered ? latest_checkpoint(folder).value_or(folder / "none") : folder;
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

const std::vector<Way>& ways() {
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

class CheckpointFaults : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

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

/// Whether saving fails with this id.
int save_is_refused(const fs::path& folder, const Way& way, std::int64_t seed, std::string_view id) {
  try {
    save(folder, way, seed);
  } catch (const CheckpointError& error) {
    if (error.id() == id) return 0;
    std::cerr << error.what() << std::endl;
    return 21;
  }
  return 20;
}

/// The former checkpoint stands alone and whole.
int former_stands(const fs::path& scratch, const fs::path& folder, const Way& way) {
  if (seed_in(current(folder, way), way.world) != 1) return 30;
  return checks::entries(scratch) == 1 ? 0 : 31;
}

TEST_F(CheckpointFaults, ALimitOnFileSizesLeavesTheFormerCheckpoint) {
  for (const Way& way : ways()) {
    if (!way.has_former) continue;
    for (const rlim_t limit : {rlim_t{1000}, rlim_t{200'000}, rlim_t{900'000}}) {
      ScratchFolder scratch;
      const fs::path folder = scratch / "x";
      expect_well(in_a_child([&] { return save(folder, way, 1), 0; }), way.text());
      expect_well(in_a_child([&] {
                    ::signal(SIGXFSZ, SIG_IGN);
                    const rlimit bound{limit, limit};
                    ::setrlimit(RLIMIT_FSIZE, &bound);
                    return save_is_refused(folder, way, 2, "MU202");
                  }),
                  way.text());
      expect_well(in_a_child([&] { return former_stands(scratch.path(), folder, way); }), way.text());
    }
  }
}

TEST_F(CheckpointFaults, AFullDiskLeavesTheFormerCheckpoint) {
  ScratchFolder scratch;
  constexpr int kNotPermitted = 77;
  const Ended ended = in_a_child([&] {
    // In a name space of its own, so that the mount goes with this process.
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return kNotPermitted;
    if (::mount("small", scratch.path().c_str(), "tmpfs", 0, "size=5m") != 0) return kNotPermitted;
    for (const bool asynchronous : {false, true}) {
      const Way way{.world = 2, .asynchronous = asynchronous};
      save(scratch / "x", way, 1);
      if (const int code = save_is_refused(scratch / "x", way, 2, "MU202")) return code;
      if (const int code = former_stands(scratch.path(), scratch / "x", way)) return code;
      fs::remove_all(scratch / "x");
    }
    return 0;
  });
  if (ended.code == kNotPermitted)
    GTEST_SKIP() << "this user may not mount a small tmpfs; a limit on file sizes stands in for a full disk";
  expect_well(ended, "a tmpfs of 5 MiB");
}

TEST_F(CheckpointFaults, AFolderThatMayNotBeWrittenIsNamed) {
  ScratchFolder scratch;
  const Way way{.world = 2};
  expect_well(in_a_child([&] { return save(scratch / "x", way, 1), 0; }), "the former");
  fs::permissions(scratch.path(),
                  fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  expect_well(in_a_child([&] {
                // Root may write everywhere, so the child becomes somebody who may not.
                if (::geteuid() == 0 && ::seteuid(65534) != 0) return 1;
                return save_is_refused(scratch / "x", way, 2, "MU202");
              }),
              "a folder that may not be written");
  expect_well(in_a_child([&] { return former_stands(scratch.path(), scratch / "x", way); }), "afterwards");
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

TEST_F(CheckpointFaults, EveryDamageIsFoundAndItsFileNamed) {
  ScratchFolder scratch;
  const Way way{.world = 2};
  expect_well(in_a_child([&] { return save(scratch / "x", way, 1), 0; }), "the original");
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(scratch / "x")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 5u);
  std::mt19937 random(23);
  for (int i = 0; i < places(200, 2000); ++i) {
    const fs::path& file = files[static_cast<std::size_t>(i) % files.size()];
    const std::string good = checks::read(file);
    std::string bad = good;
    const std::size_t place = random() % good.size();
    const bool truncated = i % 4 == 0;
    if (truncated) bad.resize(place);
    else bad[place] ^= static_cast<char>(1 << random() % 8);
    checks::write(file, bad);
    try {
      const std::int64_t seed = seed_in(scratch / "x", 2);
      ADD_FAILURE() << file << (truncated ? " truncated" : " changed") << " at byte " << place << " was loaded, seed "
                    << seed;
    } catch (const CheckpointError& error) {
      EXPECT_TRUE(error.id() == "MU210" || error.id() == "MU213" || error.id() == "MU216") << error.what();
      EXPECT_NE(std::string(error.what()).find(file.filename().string()), std::string::npos)
          << file << " at byte " << place << ": " << error.what();
    }
    checks::write(file, good);
  }
  EXPECT_EQ(seed_in(scratch / "x", 2), 1);
}

}  // namespace
}  // namespace muster
