#include <string>

#include <gtest/gtest.h>

#include "parallel/device_training.h"

namespace muster::parallel::on_device {
namespace {

void expect_bits_of_cpu(int size, const Managed& how, int seeds = 6) {
  SCOPED_TRACE(how.name + (how.hybrid ? " hybrid" : "") + " " + how.comm_hook);
  sim::install();
  const auto expected = on_the_cpu(size, how);
  for (int seed = 0; seed < seeds; ++seed) {
    sim::set_seed(static_cast<uint64_t>(seed));
    ASSERT_EQ(compared(expected, how, /*side_stream=*/seed % 2 == 1), "") << "seed " << seed;
  }
}

TEST(DeviceBackend, ReplicatedTrainingHasTheBitsOfTheCpu) {
  expect_bits_of_cpu(2, {});
  expect_bits_of_cpu(3, {.bucket_mb = 0.001});
  expect_bits_of_cpu(2, {.bucket_mb = 0.001, .again = true});
}
TEST(DeviceBackend, CommHooksHaveTheBitsOfTheCpu) {
  for (const char* hook : {"bf16", "fp16", "powersgd"}) expect_bits_of_cpu(2, {.bucket_mb = 0.001, .comm_hook = hook});
}
TEST(DeviceBackend, ShardedTrainingHasTheBitsOfTheCpu) {
  for (const char* name : {"zero1", "zero2", "fsdp"})
    expect_bits_of_cpu(2, {.name = name, .evaluates = true, .writes = true});
  expect_bits_of_cpu(3, {.name = "fsdp"});
}
TEST(DeviceBackend, ReductionsWithoutABackwardHaveTheBitsOfTheCpu) {
  for (const char* name : {"ddp", "zero1", "zero2"}) expect_bits_of_cpu(2, {.name = name, .misses = true});
}
TEST(DeviceBackend, ShardedTrainingInBfloat16HasTheBitsOfTheCpu) {
  for (const char* name : {"zero1", "zero2", "fsdp"}) {
    expect_bits_of_cpu(2, {.name = name, .param_dtype = "bf16"});
    expect_bits_of_cpu(2, {.name = name, .reduce_dtype = "bf16"});
  }
}
TEST(DeviceBackend, HybridShardingEndsWithTheBitsOfTheCpu) {
  expect_bits_of_cpu(4, {.name = "fsdp", .hybrid = true}, 10);
  expect_bits_of_cpu(4, {.name = "fsdp", .kept_over = 2}, 10);
}
TEST(DeviceBackend, AccumulatedGradientsAndUnfrozenLayersHaveTheBitsOfTheCpu) {
  for (const char* name : {"ddp", "zero1", "zero2", "fsdp"}) {
    expect_bits_of_cpu(2, {.name = name, .bucket_mb = 0.001, .streams = Streams::two, .accumulates = true}, 4);
    expect_bits_of_cpu(2, {.name = name, .bucket_mb = 0.001, .streams = Streams::two, .unfreezes = true}, 4);
  }
}
TEST(DeviceBackend, StatisticsAndAveragesOfAllRanksHaveTheBitsOfTheCpu) {
  for (const char* name : {"ddp", "fsdp"}) expect_bits_of_cpu(2, {.name = name, .batch_norm = true});
  expect_bits_of_cpu(2, {.local_sgd_steps = 2});
}

TEST(SeveralStreams, OfAForwardAndItsBackwardHaveTheBitsOfTheCpu) {
  for (const double bucket_mb : {25., 0.001}) expect_bits_of_cpu(2, {.bucket_mb = bucket_mb, .streams = Streams::two});
  expect_bits_of_cpu(2, {.bucket_mb = 0.001, .comm_hook = "powersgd", .streams = Streams::two});
  for (const char* name : {"zero1", "zero2", "fsdp"})
    expect_bits_of_cpu(2, {.name = name, .streams = Streams::two, .evaluates = true});
  expect_bits_of_cpu(4, {.name = "fsdp", .kept_over = 2, .streams = Streams::two});
}

TEST(SeveralStreams, ThatTheCallersOfBackwardDoNotWaitForHaveTheBitsOfTheCpu) {
  for (const double bucket_mb : {25., 0.001})
    expect_bits_of_cpu(2, {.bucket_mb = bucket_mb, .streams = Streams::beside});
  for (const char* name : {"zero1", "zero2", "fsdp"}) expect_bits_of_cpu(2, {.name = name, .streams = Streams::beside});
}

TEST(SeveralStreams, OfStagedOperationsHaveTheValuesOfTheCpu) {
  sim::install();
  for (const char* name : {"ddp", "zero2", "fsdp"}) {
    const Managed how{.name = name, .bucket_mb = 0.001, .streams = Streams::two, .evaluates = true};
    const auto expected = on_the_cpu(2, how);
    for (uint64_t seed = 1; seed < 4; ++seed) {
      sim::set_seed(seed);
      EXPECT_EQ(compared(expected, how, seed % 2 == 1, /*device_backend=*/false), "") << name << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace muster::parallel::on_device
