#include "muster/runtime/metrics.h"

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/testing/world.h"

namespace muster::runtime {
namespace {

TEST(GatherForMetrics, LeavesWhatIsNotPerSample) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const std::optional<StepRows> last(
        StepRows{.equal = true, .local = 3, .local_real = group.rank() == 0 ? 3 : 1, .real = 4});
    struct Result {
      torch::Tensor guess, loss;
      std::vector<std::string> names;
      int64_t number;
    };
    const Result mine{
        torch::full({3, 2}, group.rank()), torch::tensor(1.5 * group.rank()), {"a", "b", "c"}, group.rank()};
    const auto all = gather_for_metrics(group, last, mine);
    EXPECT_EQ(all.guess.sizes(), (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(all.loss.sizes(), (std::vector<int64_t>{2}));  // one per rank, also in the last step
    EXPECT_EQ(all.names, (std::vector<std::string>{"a", "b", "c", "a"}));
    EXPECT_EQ(all.number, group.rank());
    const auto map = gather_for_metrics(group, last, std::map<std::string, torch::Tensor>{{"x", torch::ones({3})}});
    EXPECT_EQ(map.at("x").size(0), 4);
    EXPECT_EQ(gather_for_metrics(group, std::nullopt, torch::ones({3})).size(0), 6);  // no loader in use
  });
}

TEST(GatherForMetrics, WhatStandsForNoBatchComesWhole) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const std::optional<StepRows> last(
        StepRows{.equal = true, .local = 4, .local_real = group.rank() == 0 ? 4 : 2, .real = 6});
    const auto confusion = torch::full({4, 4}, group.rank());
    EXPECT_EQ(gather_for_metrics(group, last, confusion).size(0), 6);  // taken for a batch
    const torch::Tensor whole = gather_for_metrics(group, last, per_rank(confusion));
    EXPECT_EQ(whole.sizes(), (std::vector<int64_t>{8, 4}));
    struct Figures {
      torch::Tensor guess;
      PerRank<std::vector<std::string>> classes;
    };
    const auto [guess, figures] = gather_for_metrics(
        group, last, torch::ones({4}), Figures{torch::ones({4}), per_rank(std::vector<std::string>(4, "x"))});
    EXPECT_EQ(guess.size(0), 6);
    EXPECT_EQ(figures.guess.size(0), 6);
    EXPECT_EQ(figures.classes.value.size(), 8u);

    MetricsCollector<torch::Tensor, PerRank<torch::Tensor>> collector(group, [&] { return last; });
    collector.add(torch::ones({4}), per_rank(confusion));
    const auto [guesses, matrices] = collector.gathered();
    EXPECT_EQ(guesses.size(0), 6);
    static_assert(std::is_same_v<std::remove_cvref_t<decltype(matrices)>, torch::Tensor>);
    EXPECT_EQ(matrices.sizes(), (std::vector<int64_t>{8, 4}));
  });
}

TEST(GatherForMetrics, ListsOfUnequalLengthAreAnError) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const std::vector<torch::Tensor> list(static_cast<size_t>(group.rank() + 1), torch::ones({1}));
    try {
      gather_for_metrics(group, std::nullopt, list);
      FAIL() << "lists of 1 and 2 tensors were gathered";
    } catch (const Error& error) {
      EXPECT_EQ(error.id(), "MU065");
    }
    EXPECT_EQ(gather_for_metrics(group, std::nullopt, torch::full({1}, 100)).sum().item<int64_t>(), 200);
    const std::vector<std::string> names(static_cast<size_t>(group.rank()),
                                         "x");  // a list of texts may have any length
    EXPECT_EQ(gather_for_metrics(group, std::nullopt, names).size(), 1u);
  });
}

TEST(GatherForMetrics, ATensorWithoutDimensionsHasOneInEveryWorld) {
  for (int world : {1, 3})
    testing::run_threads(world, 0, [world](const comm::Communicator& group) {
      EXPECT_EQ(gather_for_metrics(group, std::nullopt, torch::tensor(2)).sizes(), (std::vector<int64_t>{world}));
    });
}

TEST(Collector, OfNestedValuesAndNothing) {  // MU254
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    const auto id = [](auto collector) {
      try {
        collector.gathered();
        return std::string("nothing thrown");
      } catch (const Error& error) {
        return std::string(error.id());
      }
    };
    const auto none = [] { return std::nullopt; };
    EXPECT_EQ(id(MetricsCollector<torch::Tensor>(group, none)), "MU254");
    EXPECT_EQ(id(MetricsCollector<std::vector<std::string>, PerRank<torch::Tensor>>(group, none)), "MU254");
    EXPECT_TRUE(MetricsCollector<std::vector<std::string>>(group, none).gathered().empty());
    using Pair = std::map<std::string, torch::Tensor>;
    MetricsCollector<Pair> collector(group, [] { return std::nullopt; });
    EXPECT_TRUE(collector.gathered().empty());
    if (group.rank() == 1) collector.add(Pair{{"a", torch::ones({2})}, {"b", torch::tensor(7)}});
    collector.add(Pair{{"a", torch::zeros({1})}, {"b", torch::tensor(8)}});
    const auto all = collector.gathered();
    EXPECT_TRUE(torch::equal(all.at("a"), torch::tensor({0.f, 1.f, 1.f, 0.f})));
    EXPECT_TRUE(torch::equal(all.at("b"), torch::tensor({8, 7, 8})));
  });
}

}  // namespace
}  // namespace muster::runtime
