#include "muster/shard/chunk.h"

#include <numeric>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace muster::shard {
namespace {

std::vector<int64_t> lengths_of(int64_t length, int world) {
  std::vector<int64_t> lengths;
  for (const auto& chunk : chunks_of(length, world)) lengths.push_back(chunk.length);
  return lengths;
}

using Lengths = std::vector<int64_t>;

TEST(Chunks, AreThoseOfPyTorch) {
  EXPECT_EQ(lengths_of(37, 4), (Lengths{10, 10, 10, 7}));
  EXPECT_EQ(lengths_of(5, 4), (Lengths{2, 2, 1, 0}));
  EXPECT_EQ(lengths_of(6, 4), (Lengths{2, 2, 2, 0}));
  EXPECT_EQ(lengths_of(1, 3), (Lengths{1, 0, 0}));
  EXPECT_EQ(lengths_of(2, 3), (Lengths{1, 1, 0}));
  EXPECT_EQ(lengths_of(101, 4), (Lengths{26, 26, 26, 23}));
  EXPECT_EQ(lengths_of(0, 2), (Lengths{0, 0}));
  EXPECT_EQ(lengths_of(9, 1), Lengths{9});
}

TEST(Chunks, CoverEveryElementOnce) {
  for (int world = 1; world <= 9; ++world)
    for (int64_t length = 0; length <= 40; ++length) {
      int64_t end = 0;
      for (int rank = 0; rank < world; ++rank) {
        const auto chunk = chunk_of(length, world, rank);
        EXPECT_EQ(chunk.begin, end);
        EXPECT_LE(chunk.length, chunk_size(length, world));
        for (int64_t i = chunk.begin; i < chunk.begin + chunk.length; ++i) EXPECT_EQ(owner_of(i, length, world), rank);
        end += chunk.length;
      }
      EXPECT_EQ(end, length) << world;
    }
}

TEST(Chunks, OfTensorsShareMemoryAndJoinAgain) {
  const auto whole = torch::arange(7 * 5).view({7, 5});
  for (const int64_t dim : {0, 1, -1})
    for (const int world : {1, 2, 3, 4, 8}) {
      std::vector<at::Tensor> pieces;
      for (int rank = 0; rank < world; ++rank) {
        pieces.push_back(chunk_of(whole, dim, world, rank));
        EXPECT_EQ(pieces.back().dim(), 2);
        EXPECT_TRUE(pieces.back().is_alias_of(whole));
      }
      EXPECT_TRUE(torch::equal(join_chunks(pieces, dim), whole)) << dim << ' ' << world;
    }
  EXPECT_EQ(chunk_of(whole, 0, 4, 3).sizes(), at::IntArrayRef({1, 5}));
  EXPECT_EQ(chunk_of(whole, 0, 8, 7).sizes(), at::IntArrayRef({0, 5}));
}

}  // namespace
}  // namespace muster::shard
