#include "device/memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "muster/sim/sim.h"

namespace muster::device {
namespace {

TEST(Memory, OfTheCpuIsNotCounted) {
  EXPECT_FALSE(memory_use(at::kCPU));
  EXPECT_EQ(describe_memory(at::kCPU), "");
}

TEST(Memory, OfADeviceIsCountedByItsAllocator) {
  sim::install();
  const auto device = sim::device(2);
  set_current(device);
  EXPECT_EQ(current(), device);
  const auto before = memory_use(device).value();
  {
    const auto tensor = at::zeros({1 << 20}, at::TensorOptions(at::kFloat).device(device));
    EXPECT_EQ(memory_use(device)->allocated, before.allocated + (4 << 20));
  }
  const auto after = memory_use(device).value();
  EXPECT_EQ(after.allocated, before.allocated);
  EXPECT_GE(after.peak, before.allocated + (4 << 20));
  EXPECT_EQ(memory_use(sim::device(3))->peak, 0);
  EXPECT_EQ(describe_memory(device),
            "sim:2 holds 0 B in tensors now and held 4.0 MiB at most; 4.0 MiB are reserved, and 4.0 MiB were at "
            "most");
}

TEST(Memory, ThatIsPinnedIsCounted) {
  EXPECT_EQ(pinned_bytes(at::kCPU), 0);
  sim::install();
  const auto before = pinned_bytes(sim::device(0));
  const auto pinned = at::zeros({1 << 20}, at::kFloat).pin_memory();
  EXPECT_GE(pinned_bytes(sim::device(0)), before + (4 << 20));
}

}  // namespace
}  // namespace muster::device
