#include "muster/strategy/detail/agreement.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::strategy {
namespace {

TEST(Agreement, SettlesSumMaximumAndMinimum) {
  testing::run_threads(3, 0, [](const comm::Communicator& group) {
    Agreement agreement(group, "figures");
    const auto sum = agreement.ask(group.rank(), comm::ReduceOp::sum),
               most = agreement.ask(group.rank(), comm::ReduceOp::max),
               least = agreement.ask(group.rank() + 1, comm::ReduceOp::min);
    agreement.run();
    EXPECT_EQ(agreement.answer(sum), 3);
    EXPECT_EQ(agreement.answer(most), 2);
    EXPECT_EQ(agreement.answer(least), 1);
    EXPECT_TRUE(any_rank(group, "whether one has it", group.rank() == 1));
  });
}

TEST(Agreement, IsNotTakenForAnotherOneOrForACallOfTheProgram) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const auto text =
        testing::thrown([&] { any_rank(group, group.rank() == 0 ? "check_trigger" : "signal_received", true); });
    EXPECT_TRUE(text.starts_with("MU050")) << text;
    EXPECT_NE(
        text.find("[1] for check_trigger, rank 1 called the library's all_gather of float64 [1] for signal_received"),
        std::string::npos)
        << text;
  });
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const auto text = testing::thrown([&] {
      if (group.rank() == 0) group.all_gather(at::tensor({7.0}, at::kDouble));
      else any_rank(group, "check_trigger", false);
    });
    EXPECT_NE(text.find("rank 0 called all_gather of float64 [1], rank 1 called the library's all_gather of float64 "
                        "[1] for check_trigger"),
              std::string::npos)
        << text;
  });
}

}  // namespace
}  // namespace muster::strategy
