#include "muster/data/sampler.h"

#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "datasets.h"
#include "muster/data/sample_split.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

std::vector<int64_t> pass(Sampler& sampler, int64_t epoch, int64_t from = 0) {
  sampler.start(epoch);
  sampler.seek(from);
  std::vector<int64_t> all;
  for (int64_t i = from; i < sampler.size(); ++i) all.push_back(sampler.next());
  return all;
}

TEST(BatchListSampler, IsDealtSkippedAndResumedAsAnyBatchSampler) {
  const std::vector<std::vector<int64_t>> lists{{0, 1}, {2}, {5, 4, 3}, {2}, {7, 6}};
  const DataLoader whole(data::testing::numbers(8), BatchListSampler(lists));
  EXPECT_EQ(data::testing::run(whole), lists);
  const auto of = [&](int rank, int world) { return whole.distributed({.rank = rank, .world_size = world}); };
  EXPECT_EQ(data::testing::run(of(0, 2)), (data::testing::Batches{{0, 1}, {5, 4, 3}, {7, 6}}));
  EXPECT_EQ(data::testing::run(of(1, 2)), (data::testing::Batches{{2}, {2}, {0, 1}}));
  auto loader = of(1, 2);
  LoaderPosition saved;
  for (auto& batch : loader) {
    (void)batch;
    saved = loader.save_position();
    break;
  }
  auto resumed = of(1, 2);
  resumed.load_position(saved);
  EXPECT_EQ(data::testing::run(resumed), (data::testing::Batches{{2}, {0, 1}}));
  EXPECT_EQ(data::testing::run(resumed), data::testing::run(of(1, 2)));
  EXPECT_EQ(testing::thrown_id([] { BatchListSampler({{1}, {}}); }), "MU120");
  EXPECT_EQ(testing::thrown_id(
                [] { DataLoader(data::testing::numbers(3), BatchListSampler({{1}}), {.dispatch_batches = true}); }),
            "MU107");
}

TEST(WeightedRandomSampler, DrawsInProportionToWeights) {
  const std::vector<double> weights{1, 0, 3, 6};
  WeightedRandomSampler sampler(weights, 100000, 5);
  std::vector<int64_t> counts(4);
  for (const auto index : pass(sampler, 0)) ++counts.at(index);
  EXPECT_EQ(counts[1], 0);
  for (const int i : {0, 2, 3}) EXPECT_NEAR(static_cast<double>(counts[i]) / 100000, weights[i] / 10, 0.01);
}

TEST(WeightedRandomSampler, WithoutReplacementDrawsFromWhatIsLeft) {
  // First 0 with 1/4, then of the rest: the pair (0, 1) comes with 1/4 * 1/3.
  WeightedRandomSampler sampler({1, 1, 2}, 3, 5, false);
  int64_t first = 0, pair = 0;
  constexpr int64_t kPasses = 20000;
  for (int64_t epoch = 0; epoch < kPasses; ++epoch) {
    const auto order = pass(sampler, epoch);
    EXPECT_EQ(std::set<int64_t>(order.begin(), order.end()).size(), 3u);
    first += order[0] == 0;
    pair += order[0] == 0 && order[1] == 1;
  }
  EXPECT_NEAR(static_cast<double>(first) / kPasses, 1.0 / 4, 0.015);
  EXPECT_NEAR(static_cast<double>(pair) / kPasses, 1.0 / 12, 0.01);
}

TEST(WeightedRandomSampler, IsAFunctionOfSeedAndEpochAndSeeks) {
  for (const bool replacement : {true, false}) {
    const std::vector<double> weights{1, 2, 3, 4, 5, 6, 7, 8};
    WeightedRandomSampler one(weights, 6, 1, replacement), same(weights, 6, 1, replacement),
        other(weights, 6, 2, replacement);
    const auto expected = pass(one, 3);
    EXPECT_EQ(pass(same, 3), expected);
    EXPECT_NE(pass(other, 3), expected);
    EXPECT_NE(pass(same, 4), expected);
    EXPECT_EQ(pass(same, 3, 4), std::vector<int64_t>(expected.begin() + 4, expected.end()));
  }
}

TEST(WeightedRandomSampler, SplitsAsAnySampler) {
  const auto data = data::testing::numbers(8);
  const std::vector<double> weights(8, 1.0);
  std::set<int64_t> all;
  for (int rank = 0; rank < 2; ++rank)
    for (const auto& batch :
         data::testing::run(DataLoader(data, WeightedRandomSampler(weights, 8, 1, false), {.batch_size = 2})
                                .distributed({.rank = rank, .world_size = 2})))
      all.insert(batch.begin(), batch.end());
  EXPECT_EQ(all.size(), 8u);
}

TEST(WeightedRandomSampler, RefusesWeightsThatMakeNoSense) {
  EXPECT_EQ(testing::thrown_id([] { WeightedRandomSampler({1, -1}, 1, 0); }), "MU116");
  EXPECT_EQ(testing::thrown_id([] { WeightedRandomSampler({1, NAN}, 1, 0); }), "MU116");
  EXPECT_EQ(testing::thrown_id([] { WeightedRandomSampler({0, 0}, 1, 0); }), "MU116");
  EXPECT_EQ(testing::thrown_id([] { WeightedRandomSampler({1, 0, 1}, 3, 0, false); }), "MU116");
}

}  // namespace
}  // namespace muster
