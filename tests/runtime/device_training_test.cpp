#include <gtest/gtest.h>

#include "muster/parallel/sharded_options.h"
#include "runtime/device_course.h"

namespace muster {
namespace {

using testing::as_device_ranks;
using testing::expect_bits_of_cpu;

TEST(DeviceTraining, OfOneRankEqualsTheCpu) {
  // A multiple of 64: alone, an optimizer pads parameters on the CPU only.
  as_device_ranks(1, [] { expect_bits_of_cpu({.width = 64}); });
}
TEST(DeviceTraining, EqualsTheCpuUnderDdp) {
  as_device_ranks(2, [] { expect_bits_of_cpu({}); });
}
TEST(DeviceTraining, EqualsTheCpuUnderZero1) {
  as_device_ranks(2, [] { expect_bits_of_cpu({.strategy = "zero1"}); });
}
TEST(DeviceTraining, EqualsTheCpuUnderZero2) {
  as_device_ranks(2, [] { expect_bits_of_cpu({.strategy = "zero2"}); });
}
TEST(DeviceTraining, EqualsTheCpuUnderFsdp) {
  as_device_ranks(2, [] { expect_bits_of_cpu({.strategy = FSDP{.unit_min_elements = 60}}); });
}
TEST(DeviceTraining, EqualsTheCpuWithAdamW) {
  as_device_ranks(2, [] {
    expect_bits_of_cpu({.optimizer = "adamw"});
    expect_bits_of_cpu({.strategy = FSDP{.unit_min_elements = 60}, .optimizer = "adamw"});
  });
}
TEST(DeviceTraining, ClipsAsTheCpu) {
  as_device_ranks(2, [] {
    expect_bits_of_cpu({.clips = true});
    expect_bits_of_cpu({.strategy = FSDP{.unit_min_elements = 60}, .clips = true});
  });
}
TEST(DeviceTraining, HasTheSameBitsInBfloat16UnderAnyOrder) {
  as_device_ranks(2, [] {
    expect_bits_of_cpu({.precision = "bf16"});
    expect_bits_of_cpu({.strategy = FSDP{.unit_min_elements = 60}, .precision = "bf16"});
  });
}

TEST(DeviceTraining, RecomputesWithTheSameBits) {
  as_device_ranks(1, [] { expect_bits_of_cpu({.recompute = true, .width = 64}); });
  as_device_ranks(2, [] {
    for (const Strategy& strategy :
         {Strategy("ddp"), Strategy("zero1"), Strategy("zero2"), Strategy(FSDP{.unit_min_elements = 60})}) {
      expect_bits_of_cpu({.strategy = strategy, .recompute = true});
      expect_bits_of_cpu({.strategy = strategy, .precision = "bf16", .recompute = true});
    }
  });
}

}  // namespace
}  // namespace muster
