#include <random>

#include <gtest/gtest.h>

#include "parallel/replicated/replica.h"

namespace muster::parallel {
namespace {

std::vector<std::vector<size_t>> items_of(const BucketLayout& layout) {
  std::vector<std::vector<size_t>> items;
  for (const auto& bucket : layout.buckets) items.push_back(bucket.items);
  return items;
}

TEST(BucketLayout, GoesFromTheLastItemToTheFirst) {
  // 64 floats are 256 bytes: the first bucket takes one, the others two; a large item stands alone.
  const std::vector<BucketItem> items{{64, 4, 0}, {64, 4, 0}, {640, 4, 0}, {64, 4, 0}, {64, 4, 0}, {64, 4, 0}};
  const auto layout = assign_buckets(items, 256, 512);
  EXPECT_EQ(items_of(layout), (std::vector<std::vector<size_t>>{{5}, {4, 3}, {2}, {1, 0}}));
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{896, 832, 192, 128, 64, 0}));
  EXPECT_EQ(layout.totals, (std::vector<int64_t>{960}));
  EXPECT_EQ(layout.buckets[3].begin, 832);
  EXPECT_EQ(layout.buckets[3].length, 128);
}

TEST(BucketLayout, KindsDoNotShareBuckets) {
  const std::vector<BucketItem> items{{64, 4, 0}, {64, 8, 1}, {64, 4, 0}, {64, 8, 1}};
  const auto layout = assign_buckets(items, 1e6, 1e6);
  EXPECT_EQ(items_of(layout), (std::vector<std::vector<size_t>>{{3, 1}, {2, 0}}))
      << "the one that is full first comes first";
  EXPECT_EQ(layout.totals, (std::vector<int64_t>{128, 128}));
}

TEST(BucketLayout, NothingHasNoBuckets) { EXPECT_TRUE(assign_buckets({}, 1, 1).buckets.empty()); }

TEST(BucketLayout, CoversEveryElementOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<BucketItem> items(random() % 40);
    for (auto& item : items) {
      item.kind = random() % 3;
      item = {static_cast<int64_t>(64 * (random() % 9)), item.kind == 1 ? 8 : 4, item.kind};
    }
    const auto layout = assign_buckets(items, 64 * (random() % 40), 64 * (random() % 90));
    std::vector<int64_t> next(3);
    size_t seen = 0;
    for (const auto& bucket : layout.buckets) {
      ASSERT_EQ(bucket.begin, next[bucket.kind]);
      for (const auto i : bucket.items) {
        ASSERT_EQ(items[i].kind, bucket.kind);
        ASSERT_EQ(layout.offsets[i], next[bucket.kind]);
        next[bucket.kind] += items[i].elements;
        ++seen;
      }
      ASSERT_EQ(bucket.begin + bucket.length, next[bucket.kind]);
    }
    ASSERT_EQ(seen, items.size());
  }
}

}  // namespace
}  // namespace muster::parallel
