#include "parallel/sharded/shard_layout.h"

#include <gtest/gtest.h>

namespace muster::parallel {
namespace {

TEST(ShardLayout, CutsWholeBlocksUnevenlyAndLeavesRanksEmpty) {
  // 100, 1, 64 and 300 elements take 2, 1, 1 and 5 blocks of 64.
  ShardLayout layout({100, 1, 64, 300}, 4);
  EXPECT_EQ(layout.shard_numel(), 3 * 64);  // 9 blocks over 4 ranks: 3, 3, 3, 0
  EXPECT_EQ(layout.total(), 12 * 64);
  EXPECT_EQ(layout.whole(0), (shard::Run{0, 128}));
  EXPECT_EQ(layout.whole(3), (shard::Run{256, 320}));
  EXPECT_EQ(layout.part(0, 0), (shard::Run{0, 128}));
  EXPECT_EQ(layout.part(1, 0), (shard::Run{128, 64}));
  EXPECT_EQ(layout.part(2, 1), (shard::Run{0, 64}));
  EXPECT_EQ(layout.part(3, 1), (shard::Run{64, 128}));
  EXPECT_EQ(layout.part(3, 2), (shard::Run{0, 192}));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(layout.part(i, 3).length, 0);
}

TEST(ShardLayout, PartsCoverEveryElementOnce) {
  for (int world : {1, 2, 3, 4, 7})
    for (std::vector<int64_t> numels : {std::vector<int64_t>{1}, {64}, {65, 0, 3}, {4096, 17, 129, 1000}}) {
      ShardLayout layout(numels, world);
      for (size_t i = 0; i < numels.size(); ++i) {
        int64_t next = layout.whole(i).begin;
        for (int rank = 0; rank < world; ++rank) {
          const auto part = layout.part(i, rank);
          EXPECT_EQ(part.begin % 64, 0);
          EXPECT_EQ(part.length % 64, 0);
          if (part.length == 0) continue;
          EXPECT_EQ(rank * layout.shard_numel() + part.begin, next);
          next += part.length;
        }
        EXPECT_EQ(next, layout.whole(i).begin + layout.whole(i).length);
        EXPECT_GE(layout.whole(i).length, numels[i]);
      }
    }
}

TEST(ShardLayout, FindsTheParameterOfAnElement) {
  ShardLayout layout({100, 1, 64}, 2);
  EXPECT_EQ(layout.at(0), 0u);
  EXPECT_EQ(layout.at(127), 0u);
  EXPECT_EQ(layout.at(128), 1u);
  EXPECT_EQ(layout.at(200), 2u);
}

}  // namespace
}  // namespace muster::parallel
