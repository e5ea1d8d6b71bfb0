// The tests of testing.md.
#include <gtest/gtest.h>
#include <muster/base/error.h>
#include <muster/testing/compare.h>
#include <muster/testing/gtest.h>
#include <muster/testing/thrown.h>
#include <muster/testing/world.h>
#include <torch/torch.h>

namespace {

using muster::comm::Communicator;

/// The function under test: the mean over all ranks, which refuses integers.
torch::Tensor mean_of_all(const torch::Tensor& values, const Communicator& group) {
  if (!values.is_floating_point()) throw muster::UsageError("MU002", "mean_of_all takes floating-point values");
  auto mean = values.clone();
  group.all_reduce(mean, muster::comm::ReduceOp::mean);
  return mean;
}

TEST(MeanOfAll, IsTheSameOnEveryRank) {
  muster::testing::run_threads(3, /*seed=*/1, [](const Communicator& group) {
    const auto mean = mean_of_all(torch::full({4}, group.rank() * 1.5), group);
    EXPECT_EQ(muster::testing::difference(mean, torch::full({4}, 1.5)), "");
  });
}

TEST(MeanOfAll, RefusesIntegers) {
  muster::testing::run_threads(2, /*seed=*/1, [](const Communicator& group) {
    EXPECT_EQ(muster::testing::thrown_id([&] { mean_of_all(torch::ones({2}, torch::kLong), group); }), "MU002");
  });
}

TEST(MeanOfAll, WorksBetweenProcesses) {
  muster::testing::expect_processes(2, [](const Communicator& group) {
    const auto mean = mean_of_all(torch::ones({2}) * group.rank(), group);
    EXPECT_EQ(muster::testing::difference_in_bits(mean, torch::full({2}, 0.5)), "");
  });
}

}  // namespace

int main(int argc, char** argv) {
  muster::testing::start_fork_server(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
