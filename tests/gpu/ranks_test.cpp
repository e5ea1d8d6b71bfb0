// Two ranks and their tensors on an accelerator, which they share where there is one: collectives through host memory
// and over the device's own backend, parts of a group, and training.
#include <functional>
#include <string>

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>

#include "comm/agreement.h"
#include "comm/device_results.h"
#include "muster/comm/rendezvous.h"
#include "muster/parallel/sharded_options.h"
#include "muster/testing/world.h"
#include "on_device/test_backend.h"
#include "runtime/device_course.h"

namespace muster {
namespace {

using comm::Communicator;

struct StagedRanks : ::testing::Test {};
struct BackendRanks : testing::BackendOfDevice {};

void as_two_ranks(bool own_backend, const std::function<void(const Communicator&, at::Device)>& body) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  testing::ProcessWorldOptions options;
  options.arguments = {std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name()};
  const auto run = [&](const ClusterEnvironment& cluster) {
    testing::use_test_device();
    const auto device = testing::test_device(cluster.rank);
    const c10::DeviceGuard on_device(device);
    GroupOptions how{.backend = "gloo"};
    if (own_backend) how.device_backend = testing::collectives_of_device();
    body(comm::connect(cluster, how), device);
    return ::testing::Test::HasFailure() ? 1 : 0;
  };
  const auto results = testing::run_processes(2, run, options);
  for (size_t rank = 0; rank < results.size(); ++rank)
    EXPECT_TRUE(results[rank].ok()) << "rank " << rank << ":\n" << results[rank].output;
}

/// A sum of two numbers has one order, and is rounded once: NCCL has no other bits than the CPU.
void expect_every_operation_as_on_the_cpu(bool own_backend) {
  as_two_ranks(own_backend, [&](const Communicator& world, at::Device device) {
    EXPECT_EQ(comm::device_backend_of(world).empty(), !own_backend);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kShort,
                             at::kChar, at::kByte, at::kBool}) {
      const auto wanted = comm::results_on_the_cpu(2, dtype)[static_cast<size_t>(world.rank())];
      const auto got = comm::all_results(world, dtype, device);
      EXPECT_EQ(comm::first_difference(got, wanted, own_backend), "") << c10::toString(dtype);
    }
  });
}

void expect_parts_beside_the_whole(bool own_backend) {
  as_two_ranks(own_backend, [](const Communicator& world, at::Device device) {
    const auto alone = world.subgroup({0}), both = world.subgroup({0, 1}), again = both.duplicate();
    EXPECT_EQ(alone.size(), 1);
    const at::Tensor one = at::full({1000}, 1 + world.rank(), device), two = one.clone(), three = one.clone();
    auto first = both.start_all_reduce(one);
    auto second = world.start_all_reduce(two);
    EXPECT_EQ(again.all_gather_bytes("x").size(), 2U);
    again.all_reduce(three, comm::ReduceOp::max);
    second.wait();
    first.wait();
    EXPECT_EQ(one[999].item<int64_t>(), 3);
    EXPECT_EQ(two[0].item<int64_t>(), 3);
    EXPECT_EQ(three[500].item<int64_t>(), 2);
  });
}

void expect_training_as_on_the_cpu(bool own_backend) {
  testing::as_device_ranks(2, [&] {
    for (const bool adamw : {false, true}) {
      const std::string optimizer = adamw ? "adamw" : "sgd";
      for (const Strategy& strategy :
           {Strategy("ddp"), Strategy("zero1"), Strategy("zero2"), Strategy(FSDP{.unit_min_elements = 60})})
        testing::expect_bits_of_cpu(
            {.backend = own_backend, .strategy = strategy, .optimizer = optimizer, .clips = adamw}, 1);
    }
    testing::expect_bits_of_cpu({.backend = own_backend, .precision = "bf16"}, 1);
  });
}

TEST_F(StagedRanks, HaveTheResultsOfTheCpuInEveryOperation) { expect_every_operation_as_on_the_cpu(false); }
TEST_F(StagedRanks, FormPartsThatWorkBesideTheWhole) { expect_parts_beside_the_whole(false); }
TEST_F(StagedRanks, TrainAsTheCpuDoes) { expect_training_as_on_the_cpu(false); }

TEST_F(BackendRanks, HaveTheResultsOfTheCpuInEveryOperation) { expect_every_operation_as_on_the_cpu(true); }
TEST_F(BackendRanks, FormPartsThatWorkBesideTheWhole) { expect_parts_beside_the_whole(true); }
TEST_F(BackendRanks, TrainAsTheCpuDoes) { expect_training_as_on_the_cpu(true); }

}  // namespace
}  // namespace muster
