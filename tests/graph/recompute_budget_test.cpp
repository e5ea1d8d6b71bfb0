#include <limits>
#include <random>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "graph/blocks.h"
#include "graph/budget.h"
#include "graph/recompute_steps.h"
#include "graph/recording.h"
#include "muster/base/error.h"
#include "muster/graph/recompute.h"
#include "muster/testing/compare.h"
#include "parallel/counted_memory.h"

namespace muster {
namespace {

using graph::BlockCost;
using parallel::CountedMemory;

struct Sums {
  int64_t bytes = 0;  // after a forward
  double seconds = 0;
};

Sums sums_of(const std::vector<BlockCost>& costs, const std::function<bool(size_t block)>& is_recomputed) {
  Sums sums;
  for (size_t i = 0; i < costs.size(); ++i) {
    sums.bytes += costs[i].kept_bytes - (is_recomputed(i) ? costs[i].returned_bytes : 0);
    sums.seconds += is_recomputed(i) ? costs[i].seconds : 0;
  }
  return sums;
}

/// The least time of all subsets that are within the budget.
double least_seconds(const std::vector<BlockCost>& costs, int64_t budget) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t subset = 0; subset < size_t{1} << costs.size(); ++subset) {
    const auto sums = sums_of(costs, [subset](size_t i) { return subset >> i & 1; });
    if (sums.bytes <= budget) least = std::min(least, sums.seconds);
  }
  return least;
}

TEST(RecomputeBudget, TheChoiceIsTheBestOfAllSubsets) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> bytes(1, 1000);
  std::uniform_real_distribution<double> seconds(0.1, 2);
  for (int table = 0; table < 200; ++table) {
    std::vector<BlockCost> costs(6);
    for (auto& cost : costs) {
      cost.returned_bytes = bytes(random);
      cost.kept_bytes = cost.returned_bytes + bytes(random) / 4;
      cost.seconds = seconds(random);
    }
    const auto most = sums_of(costs, [](size_t) { return false; }).bytes;
    const auto least = sums_of(costs, [](size_t) { return true; }).bytes;
    for (int part = 0; part <= 4; ++part) {
      const auto budget = least + (most - least) * part / 4;
      const auto chosen = graph::cheapest_blocks(costs, budget);
      const auto sums = sums_of(costs, [&](size_t i) { return chosen[i]; });
      EXPECT_LE(sums.bytes, budget) << "table " << table << ", part " << part;
      EXPECT_DOUBLE_EQ(sums.seconds, least_seconds(costs, budget)) << "table " << table << ", part " << part;
    }
  }
}

TEST(RecomputeBudget, ManyUnequalBlocksAreNearTheBest) {
  // 400 different sizes have far too many subsets: the choices are rounded. The fractional choice by least time per
  // byte is a lower limit for all of them.
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> bytes(1 << 20, 64 << 20);
  std::uniform_real_distribution<double> seconds(0.1, 2);
  std::vector<BlockCost> costs(400);
  int64_t most = 0;
  for (auto& cost : costs) {
    cost.returned_bytes = cost.kept_bytes = bytes(random);
    cost.seconds = seconds(random);
    most += cost.kept_bytes;
  }
  auto by_ratio = costs;
  std::ranges::sort(by_ratio, [](const auto& a, const auto& b) {
    return a.seconds * static_cast<double>(b.returned_bytes) < b.seconds * static_cast<double>(a.returned_bytes);
  });
  for (const int part : {1, 2, 3}) {
    const auto budget = most * part / 4;
    double limit = 0, needed = static_cast<double>(most - budget);
    for (const auto& cost : by_ratio) {
      const auto share = std::min(1.0, needed / static_cast<double>(cost.returned_bytes));
      limit += share * cost.seconds;
      needed -= share * static_cast<double>(cost.returned_bytes);
      if (needed <= 0) break;
    }
    const auto chosen = graph::cheapest_blocks(costs, budget);
    const auto sums = sums_of(costs, [&](size_t i) { return chosen[i]; });
    EXPECT_LE(sums.bytes, budget);
    EXPECT_LE(sums.seconds, 1.05 * limit) << "part " << part;
  }
}

TEST(RecomputeBudget, NothingFitsOrAllDoes) {
  const std::vector<BlockCost> costs{{100, 60, 0, 1}, {100, 60, 0, 1}, {10, 0, 0, 1}};
  EXPECT_EQ(graph::cheapest_blocks(costs, 210), (std::vector{false, false, false}));
  EXPECT_EQ(graph::cheapest_blocks(costs, 20), (std::vector{true, true, true}));
  EXPECT_EQ(graph::cheapest_blocks(costs, 150), (std::vector{true, false, false}));
  EXPECT_TRUE(graph::cheapest_blocks({}, 0).empty());
}

/// A stack of six blocks that is trained within a budget.
struct Budgeted {
  explicit Budgeted(double mib) : blocks(*one.module, options(mib), {}) {}

  static RecomputeOptions options(double mib) { return {.blocks = {"RecomputeBlock"}, .budget_mib = mib}; }
  at::Tensor forward(const at::Tensor& x) const {
    const graph::Recording recording(blocks);
    return one.forward(*one.module, x).sum();
  }
  std::vector<BlockCost> costs() const {
    std::vector<BlockCost> all;
    for (size_t i = 0; i < blocks.all().size(); ++i) all.push_back(blocks.cost(i));
    return all;
  }

  testing::RecomputeCase one = testing::recompute_case(testing::Stack(32, 6).ptr(), {256, 32}, {});
  graph::Blocks blocks;
};

TEST(RecomputeBudget, MemoryAfterAForwardIsWithinTheBudget) {
  at::set_num_threads(1);
  graph::install_recorder();
  const auto x = torch::ones({256, 32});
  torch::manual_seed(1);
  Budgeted measured(/*mib=*/1e3);
  measured.forward(x).backward();
  const auto costs = measured.costs();
  for (const auto& cost : costs) {
    // in: 256 x 64, gelu's argument; gelu: the same; norm: 256 x 32, its argument, and two of 256; of `in`: the input.
    EXPECT_EQ(cost.kept_bytes, 4 * 256 * (2 * 64 + 2 * 32 + 2));
    EXPECT_EQ(cost.returned_bytes, cost.kept_bytes - 4 * 256 * 32);
    EXPECT_EQ(cost.flops, 2 * 256 * 32 * 64 * 2);  // of both linear layers
    EXPECT_GT(cost.seconds, 0);
  }
  const auto of_head = 4 * 256 * 32 + 4;  // its input, and the loss
  for (int kept = 0; kept <= 5; ++kept) {
    int64_t budget = 0;
    for (int i = 0; i < 6; ++i) budget += costs[0].kept_bytes - (i < kept ? 0 : costs[0].returned_bytes);
    torch::manual_seed(1);
    Budgeted one(static_cast<double>(budget) / (1 << 20));
    one.forward(x).backward();
    ASSERT_TRUE(one.blocks.awaits_choice());
    one.blocks.choose(one.costs());
    EXPECT_FALSE(one.blocks.awaits_choice());
    for (const auto& parameter : one.one.module->parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
    const auto before = graph::replay_counts();
    CountedMemory memory;
    const auto loss = one.forward(x);
    const auto live = memory.live() - of_head + 4 * 256 * 32;  // the first block's input is the program's
    EXPECT_LE(live, budget + budget / 20) << kept << " kept";
    EXPECT_GE(live, budget - budget / 10) << kept << " kept";
    loss.backward();
    EXPECT_EQ(graph::replay_counts().replays - before.replays, 6 - kept);
    EXPECT_NE(one.blocks.describe().front().find(std::to_string(6 - kept) + " block"), std::string::npos);
  }
}

TEST(RecomputeBudget, KeptAndReplayedBlocksGiveTheSameGradients) {
  const auto x = torch::ones({256, 32});
  std::vector<at::Tensor> gradients;
  for (const double mib : {1e3, 0.5}) {
    torch::manual_seed(1);
    Budgeted one(mib);
    for (int step = 0; step < 2; ++step) {
      if (one.blocks.awaits_choice()) one.blocks.choose(one.costs());
      one.forward(x).backward();
    }
    int recomputed = 0;
    for (size_t i = 0; i < 6; ++i) recomputed += one.blocks.is_recomputed(i);
    EXPECT_EQ(recomputed, mib == 1e3 ? 0 : 5);  // 0.5 MiB are five inputs and one block
    size_t i = 0;
    for (const auto& parameter : one.one.module->parameters()) {
      if (mib == 1e3) gradients.push_back(parameter.grad());
      else EXPECT_EQ(testing::difference_in_bits(parameter.grad(), gradients[i++]), "");
    }
  }
}

TEST(RecomputeBudget, IsRefusedWhereItCannotBeMeasured) {
  const auto one = testing::recompute_case(testing::Stack(8, 2).ptr(), {4, 8}, {"RecomputeBlock"});
  auto options = one.options;
  options.budget_mib = 3;
  EXPECT_THROW(RecomputeScope(*one.module, options), ConfigError);
  options.budget_mib = -1;
  EXPECT_THROW(graph::Blocks(*one.module, options, {}), ConfigError);
  options.budget_mib = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(graph::Blocks(*one.module, options, {}), ConfigError);
}

}  // namespace
}  // namespace muster
