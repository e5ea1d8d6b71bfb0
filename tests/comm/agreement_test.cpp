#include "comm/agreement.h"

#include <stdexcept>

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "muster/base/error.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::comm {
namespace {

TEST(CoalescedAllReduce, SettlesSumMaximumAndMinimum) {
  testing::run_threads(3, 0, [](const Communicator& group) {
    CoalescedAllReduce scalars(group, "figures");
    const auto sum = scalars.add(group.rank(), ReduceOp::sum), most = scalars.add(group.rank(), ReduceOp::max),
               least = scalars.add(group.rank() + 1, ReduceOp::min);
    scalars.run();
    EXPECT_EQ(scalars.result(sum), 3);
    EXPECT_EQ(scalars.result(most), 2);
    EXPECT_EQ(scalars.result(least), 1);
    EXPECT_TRUE(any_rank(group, "whether one has it", group.rank() == 1));
  });
}

TEST(CoalescedAllReduce, IsNotTakenForAnotherOneOrForACallOfTheProgram) {
  testing::run_threads(2, 0, [](const Communicator& group) {
    const auto text =
        testing::thrown([&] { any_rank(group, group.rank() == 0 ? "check_trigger" : "signal_received", true); });
    EXPECT_TRUE(text.starts_with("MU050")) << text;
    EXPECT_NE(
        text.find("[1] for check_trigger, rank 1 called the library's all_gather of float64 [1] for signal_received"),
        std::string::npos)
        << text;
  });
  testing::run_threads(2, 0, [](const Communicator& group) {
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

/// Also of exceptions that are not the library's.
template <class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunTogether, ReturnsWhatEachRankReturned) {
  testing::run_threads(3, 0, [](const Communicator& group) {
    const auto all = all_gather_result(group, "names", [&] { return "!" + std::to_string(group.rank()); });
    EXPECT_EQ(all, (std::vector<std::string>{"!0", "!1", "!2"}));
    EXPECT_EQ(all_gather_result(group, "nothing", [] { return std::string(); }), std::vector<std::string>(3));
  });
  EXPECT_EQ(all_gather_result({}, "alone", [] { return std::string("x"); }), std::vector<std::string>{"x"});
}

TEST(RunTogether, TheFirstFailureReachesRanksThatHaveNone) {
  testing::run_threads(3, 0, [](const Communicator& group) {
    const auto fail = [&](const auto& error) {
      return message_of([&] {
        all_gather_result(group, "trying", [&]() -> std::string {
          if (group.rank() == 0) return "";
          throw error;
        });
      });
    };
    const bool own = group.rank() > 0;
    EXPECT_EQ(fail(std::runtime_error("the disk is full")),
              own ? "the disk is full" : "MU176: rank 1 failed in what all ranks do together: the disk is full");
    EXPECT_EQ(fail(CheckpointError("MU202", "the disk: full")),
              own ? "MU202: the disk: full" : "MU202: the disk: full (found by rank 1)");
    for (const auto* id : {"MU313", "MU314", "MU316", "MU317"}) {
      const auto text = std::string(id) + ": out of reach";
      EXPECT_EQ(fail(CheckpointError(id, "out of reach")), own ? text : text + " (found by rank 1)");
    }
    EXPECT_EQ(fail(UsageError("MU254", "no metrics")),
              own ? "MU254: no metrics" : "MU176: rank 1 failed in what all ranks do together: MU254: no metrics");
    EXPECT_EQ(fail(UsageError("MU315", "taken")),
              own ? "MU315: taken" : "MU176: rank 1 failed in what all ranks do together: MU315: taken");
    EXPECT_EQ(
        fail(UsageError("MU173", "an empty holder")),
        own ? "MU173: an empty holder" : "MU176: rank 1 failed in what all ranks do together: MU173: an empty holder");
  });
}

TEST(RunTogether, TheCallerChoosesTheErrorOfOtherRanks) {
  testing::run_threads(2, 0, [](const Communicator& group) {
    const auto said = message_of([&] {
      all_gather_result(
          group, "trying",
          [&]() -> std::string {
            if (group.rank() == 0) return "";
            throw ConfigError("MU001", "a: b");
          },
          [](const Failure& failure) {
            throw UsageError("MU191", failure.id + "|" + failure.message + "|" + std::to_string(failure.rank));
          });
    });
    EXPECT_EQ(said, group.rank() == 0 ? "MU191: MU001|a: b|1" : "MU001: a: b");
  });
}

TEST(RunTogether, AnOwnFailureCountsMoreThanALostGroup) {
  testing::run_threads(2, 0, [](const Communicator& group) {
    const auto said = message_of([&] {
      if (group.rank() == 1) return group.abort("rank 1 gave up");
      all_gather_result(group, "trying", []() -> std::string { throw std::runtime_error("the cause"); });
    });
    EXPECT_EQ(said, group.rank() == 0 ? "the cause" : "no error");
  });
}

TEST(RunOnRank0, ItsResultOrItsFailureReachesAll) {
  testing::run_threads(3, 0, [](const Communicator& group) {
    int calls = 0;
    EXPECT_EQ(broadcast_result(group, "the newest", [&] { return "call " + std::to_string(++calls); }), "call 1");
    EXPECT_EQ(calls, group.rank() == 0 ? 1 : 0);
    const auto said = message_of([&] {
      broadcast_result(group, "the newest", []() -> std::string { throw CheckpointError("MU210", "no manifest"); });
    });
    EXPECT_EQ(said, group.rank() == 0 ? "MU210: no manifest" : "MU210: no manifest (found by rank 0)");
  });
}

TEST(FirstDifference, NamesTheFirstRankThatDiffersFromRank0) {
  EXPECT_FALSE(first_difference({}));
  EXPECT_FALSE(first_difference({"a", "a"}));
  const auto found = first_difference({"a", "a", "b", "c"});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 2u);
  EXPECT_EQ(found->first, "a");
  EXPECT_EQ(found->other, "b");
}

}  // namespace
}  // namespace muster::comm
