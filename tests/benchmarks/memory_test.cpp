#include "../../benchmarks/memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "comm/forked_ranks.h"
#include "comm/shared_tensor.h"

namespace {

using muster::comm::Communicator;

constexpr double kMiB = 1 << 20;

TEST(BenchmarkMemory, ASegmentCountsInTheRankThatMadeItAlone) {
  // LibTorch's code comes into memory as it is used; a segment that counts twice is 32 MiB.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kCode = 14;  // with the sanitizer's checks in it
#else
  constexpr double kCode = 10;
#endif
  const auto body = [](const Communicator& comm) {
    const double before = bench::resident_bytes();
    const at::Tensor tensor =
        muster::comm::shared_zeros(comm, 8 << 20, at::kFloat, muster::comm::PeerAccess::write).fill_(comm.rank());
    comm.all_reduce(tensor);
    // This rank's 32 MiB, and the half of the peer's that this rank reduced.
    EXPECT_GE(bench::status_bytes("RssShmem"), 48 * kMiB);
    EXPECT_NEAR((bench::resident_bytes() - before) / kMiB, 32, kCode);
    bench::reset_peak();
    EXPECT_NEAR((bench::peak_bytes() - before) / kMiB, 32, kCode);
    {
      const at::Tensor private_memory = at::ones({4 << 20});
      comm.all_reduce(private_memory);
    }
    EXPECT_NEAR((bench::peak_bytes() - before) / kMiB, 48, kCode);
  };
  muster::comm::expect_forked(2, body, {.backend = "shm"});
}

}  // namespace
