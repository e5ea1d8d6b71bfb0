#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "faults/forked_saves.h"
#include "format/checks.h"
#include "muster/base/error.h"

// What becomes of checkpoints when disks are full, folders may not be written and files are damaged. What saves does so
// in a process of its own, forked from this one, which therefore starts no threads.

namespace muster::faults {
namespace {

using checks::ScratchFolder;

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
}  // namespace muster::faults
