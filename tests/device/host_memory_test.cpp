#include "muster/device/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

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

TEST(HostMemory, TheUsersOwnTuningStays) {
  EXPECT_FALSE(keep_freed_memory({{"MUSTER_KEEP_MEMORY", "0"}}));
  EXPECT_FALSE(keep_freed_memory({{"MALLOC_TRIM_THRESHOLD_", "131072"}}));
  EXPECT_FALSE(keep_freed_memory({{"GLIBC_TUNABLES", "glibc.malloc.mmap_max=3"}}));
  // An earlier call in this process would hide that nothing was changed.
  EXPECT_GT(faults_of_large_tensors(), 20 * (32l << 20) / getpagesize() / 2) << "freed memory is kept although it must not be";
}

TEST(HostMemory, FreedMemoryIsUsedAgain) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer brings an allocator of its own";
#endif
  ASSERT_TRUE(keep_freed_memory({}));
  (void)faults_of_large_tensors();
  EXPECT_LT(faults_of_large_tensors(), (32l << 20) / getpagesize());
  const long kept = resident_pages();
  release_freed_memory();
  EXPECT_LT(resident_pages(), kept - (16l << 20) / getpagesize());
}

}  // namespace
}  // namespace muster::device
