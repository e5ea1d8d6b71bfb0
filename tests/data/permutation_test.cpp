#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "data/random.h"
#include "datasets.h"

namespace muster::data {
namespace {

std::vector<int64_t> order(int64_t n, uint64_t seed, int64_t epoch) {
  const Permutation permutation(n, seed, epoch);
  std::vector<int64_t> all(n);
  for (int64_t i = 0; i < n; ++i) all[i] = permutation(i);
  return all;
}

TEST(Permutation, GivesEveryIndexOnce) {
  for (const int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000, 65537}) {
    auto all = order(n, 3, 1);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, testing::numbers(n)) << n;
  }
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  EXPECT_EQ(order(100, 1, 0), order(100, 1, 0));
  EXPECT_NE(order(100, 1, 0), order(100, 1, 1));
  EXPECT_NE(order(100, 1, 0), order(100, 2, 0));
  EXPECT_NE(order(100, 1, 0), testing::numbers(100));
}

// Every index is equally likely at every position: chi-square over many epochs, five standard deviations wide.
TEST(Permutation, IsUniformAtEveryPosition) {
  for (const int64_t n : {2, 3, 5, 6, 7, 11, 16, 17, 50}) {
    constexpr int kEpochs = 20000;
    std::vector<std::vector<int>> seen(n, std::vector<int>(n));
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      const Permutation permutation(n, 42, epoch);
      for (int64_t i = 0; i < n; ++i) ++seen[i][permutation(i)];
    }
    const double expected = static_cast<double>(kEpochs) / n;
    double chi = 0;
    for (const auto& row : seen)
      for (const int count : row) chi += (count - expected) * (count - expected) / expected;
    const double degrees = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi, degrees + 5 * std::sqrt(2 * degrees) + 5) << n;
  }
}

// All orders of four samples come up about equally often.
TEST(Permutation, ReachesEveryOrder) {
  std::map<std::vector<int64_t>, int> seen;
  constexpr int kEpochs = 24000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++seen[order(4, 7, epoch)];
  EXPECT_EQ(seen.size(), 24u);
  for (const auto& [permutation, count] : seen) EXPECT_NEAR(count, kEpochs / 24, 250);
}

TEST(Permutation, NeighboursDoNotStayTogether) {
  const auto all = order(20000, 5, 0);
  int close = 0;
  for (std::size_t i = 1; i < all.size(); ++i) close += std::abs(all[i] - all[i - 1]) <= 10;
  EXPECT_LT(close, 60);  // 20 expected
}

TEST(RandomSampler, IsTheOrderOfShuffle) {
  const auto data = testing::numbers(37);
  const DataLoader shuffled(data, {.batch_size = 5, .seed = 9, .shuffle = true});
  const DataLoader sampled(data, RandomSampler(37, 9), {.batch_size = 5});
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(testing::run(shuffled), testing::run(sampled));
}

}  // namespace
}  // namespace muster::data
