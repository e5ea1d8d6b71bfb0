#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "device/memory.h"
#include "muster/base/error.h"

namespace muster::device {
namespace {

/// Pages that the system had to give for 20 tensors of 32 MiB, made one after another.
long faults_of_large_tensors() {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(torch::ones({8 << 20})[i].item<float>(), 1.f);
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

long resident_pages() {
  std::ifstream file("/proc/self/statm");
  long size = 0, resident = 0;
  file >> size >> resident;
  return resident;
}

/// Whether it is true in a process of its own, whose limits and allocator may change.
bool holds_apart(const std::function<bool()>& question) {
  const auto child = ::fork();
  if (child == 0) ::_exit(question() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string id_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.id();
  }
  return "none";
}

TEST(KeepMemory, IsChosenByTheProgramThenTheVariableThenTheLauncher) {
  if (!choose_kept_memory("on", false, {}).kept) GTEST_SKIP() << choose_kept_memory("on", false, {}).reason;
  EXPECT_FALSE(choose_kept_memory("auto", false, {}).kept);
  EXPECT_EQ(choose_kept_memory("auto", false, {}).reason, "the process was started alone");
  EXPECT_FALSE(choose_kept_memory("off", true, {}).kept);
  for (const char* on : {"1", "on", "True", "yes"})
    EXPECT_TRUE(choose_kept_memory("auto", false, {{"MUSTER_KEEP_MEMORY", on}}).kept) << on;
  for (const char* off : {"0", "off", "False", "NO"})
    EXPECT_FALSE(choose_kept_memory("auto", true, {{"MUSTER_KEEP_MEMORY", off}}).kept) << off;
  EXPECT_TRUE(choose_kept_memory("on", true, {{"MUSTER_KEEP_MEMORY", "0"}}).kept) << "contradictions are MU171 before";
  EXPECT_EQ(id_of([] { choose_kept_memory("auto", true, {{"MUSTER_KEEP_MEMORY", "sometimes"}}); }), "MU002");
}

TEST(KeepMemory, IsOffUnderALimit) {
  for (const auto kind : {RLIMIT_DATA, RLIMIT_AS})
    EXPECT_TRUE(holds_apart([kind] {
      const bool before = choose_kept_memory("auto", true, {}).kept ||
                          choose_kept_memory("auto", true, {}).reason.find("container") != std::string::npos;
      const rlimit limit{rlim_t{4} << 30, rlim_t{4} << 30};
      ::setrlimit(kind, &limit);
      const auto choice = choose_kept_memory("auto", true, {});
      return before && !choice.kept && choice.reason.find("is 4.0 GiB") != std::string::npos;
    }));
}

TEST(KeepMemory, TheUsersOwnTuningStays) {
  EXPECT_FALSE(choose_kept_memory("on", true, {{"MALLOC_TRIM_THRESHOLD_", "131072"}}).kept);
  EXPECT_FALSE(choose_kept_memory("auto", true, {{"GLIBC_TUNABLES", "glibc.malloc.mmap_max=3"}}).kept);
  // An earlier call in this process would hide that nothing was changed.
  EXPECT_GT(faults_of_large_tensors(), 20 * (32l << 20) / getpagesize() / 2)
      << "freed memory is kept although it must not be";
}

TEST(KeepMemory, FreedMemoryIsUsedAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer brings an allocator of its own";
#endif
  ASSERT_TRUE(keep_freed_memory());
  (void)faults_of_large_tensors();
  EXPECT_LT(faults_of_large_tensors(), (32l << 20) / getpagesize());
  const long kept = resident_pages();
  release_freed_memory();
  EXPECT_LT(resident_pages(), kept - (16l << 20) / getpagesize());
}

}  // namespace
}  // namespace muster::device
