#include <cstring>
#include <iostream>

#include <c10/core/CachingDeviceAllocator.h>

#include "simulated.h"

namespace muster::sim {
namespace {

class SimMemory : public Simulated {};
using SimMemoryDeathTest = SimMemory;

TEST_F(SimMemoryDeathTest, TheHostCannotAccessIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const char* message = "the host accessed memory of the simulated accelerator";
  const auto a = torch::ones({10}, device(0));
  EXPECT_DEATH(std::cout << a.const_data_ptr<float>()[3], message);
  EXPECT_DEATH(std::memset(a.mutable_data_ptr(), 0, 40), message);
  EXPECT_DEATH((void)torch::from_blob(a.mutable_data_ptr(), {10}).sum(), message);
}

TEST_F(SimMemory, FreedBlocksAreUsedAgainOnTheirStream) {
  const auto* block = torch::empty({300}, device(0)).data_ptr();
  EXPECT_EQ(torch::empty({300}, device(0)).data_ptr(), block);
  const c10::StreamGuard guard(side());
  EXPECT_NE(torch::empty({300}, device(0)).data_ptr(), block);
}

TEST_F(SimMemory, WhatIsNotWrittenIsPoison) {
  EXPECT_TRUE(torch::empty({3}, device(0)).isnan().all().item<bool>());
  auto kept = torch::ones({300}, device(1));
  kept.reset();
  EXPECT_TRUE(torch::empty({300}, device(1)).isnan().all().item<bool>());
}

TEST_F(SimMemory, BytesAreCounted) {
  auto& allocator = *c10::getDeviceAllocator(at::kPrivateUse1);
  const auto before = allocator.getDeviceStats(3).allocated_bytes[0].current;
  allocator.resetPeakStats(3);
  auto x = torch::empty({1024}, device(3));
  EXPECT_EQ(allocator.getDeviceStats(3).allocated_bytes[0].current, before + 4096);
  x.reset();
  EXPECT_EQ(allocator.getDeviceStats(3).allocated_bytes[0].current, before);
  EXPECT_EQ(allocator.getDeviceStats(3).allocated_bytes[0].peak, before + 4096);
}

TEST_F(SimMemory, TooMuchIsAnOutOfMemoryError) {
  EXPECT_THROW((void)torch::empty({int64_t{1} << 34}, torch::device(device(0)).dtype(at::kByte)),
               c10::OutOfMemoryError);
}

TEST_F(SimMemory, PinnedMemoryIsKnownAsSuch) {
  const auto a = torch::ones({4});
  EXPECT_FALSE(a.is_pinned());
  const auto pinned = a.pin_memory();
  EXPECT_TRUE(pinned.is_pinned());
  EXPECT_TRUE(pinned.narrow(0, 1, 2).is_pinned());
  EXPECT_EQ(difference_in_bits(pinned, a), "");
  EXPECT_TRUE(a.to(device(0)).to(at::kCPU, /*non_blocking=*/true).is_pinned());
}

}  // namespace
}  // namespace muster::sim
