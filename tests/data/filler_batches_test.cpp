// Where the last step has no sample for a rank, filler batches keep its loop in step, and nothing counts twice.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "data/batch_order.h"
#include "datasets.h"
#include "muster/data/sample_split.h"
#include "muster/testing/gtest.h"
#include "muster/testing/world.h"
#include "streams.h"

namespace muster::data::testing {
namespace {

/// What one rank saw of a pass.
struct Seen {
  Batches batches;
  std::vector<StepSamples> steps;
};

Seen one_pass(const DataLoader<at::Tensor>& loader) {
  Seen seen;
  for (auto& batch : loader) {
    seen.batches.push_back(list(batch));
    seen.steps.push_back(loader.state()->samples());
  }
  return seen;
}

/// Every sample of the pass is real once, and a batch is real or filler as a whole.
void expect_each_sample_once(const std::vector<Seen>& ranks, int64_t size) {
  std::vector<int64_t> real;
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank.batches.size(), ranks.front().batches.size());
    for (size_t i = 0; i < rank.batches.size(); ++i) {
      const auto& [batch, step] = std::pair(rank.batches[i], rank.steps[i]);
      ASSERT_FALSE(batch.empty());
      EXPECT_TRUE(step.local_real == step.local || step.local_real == 0);
      EXPECT_EQ(step.local, std::ssize(batch));
      EXPECT_TRUE(step.every_rank);
      if (step.local_real > 0) real.insert(real.end(), batch.begin(), batch.end());
    }
  }
  std::ranges::sort(real);
  EXPECT_EQ(real, numbers(size));
}

/// All ranks know how many samples a step has.
void expect_equal_totals(const std::vector<Seen>& ranks) {
  for (size_t i = 0; i < ranks.front().steps.size(); ++i) {
    int64_t total = 0, real = 0;
    for (const auto& rank : ranks) {
      total += rank.steps[i].local;
      real += rank.steps[i].local_real;
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank.steps[i].total, total);
      EXPECT_EQ(rank.steps[i].real, real);
    }
  }
}

template <class Make>
void expect_filled_up(const Make& make) {
  for (const int world : {1, 2, 3, 4})
    for (const int64_t batch_size : {1, 2, 3})
      for (int64_t size = 0; size < 15; ++size) {
        SCOPED_TRACE(::testing::Message() << "ranks " << world << ", batch " << batch_size << ", samples " << size);
        std::vector<Seen> ranks;
        for (int rank = 0; rank < world; ++rank)
          ranks.push_back(one_pass(make(size, DataLoaderOptions{.batch_size = batch_size})
                                       .distributed({.filler_batches = true, .rank = rank, .world_size = world})));
        expect_each_sample_once(ranks, size);
        expect_equal_totals(ranks);
      }
}

TEST(FillerBatches, KeepRanksInStepAndRepeatNoRealSample) {
  expect_filled_up([](int64_t size, const DataLoaderOptions& options) { return DataLoader(numbers(size), options); });
}

TEST(FillerBatches, ComeThroughSamplersToo) {
  expect_filled_up([](int64_t size, const DataLoaderOptions& options) {
    return DataLoader(numbers(size), SequentialSampler(size), options);
  });
}

TEST(FillerBatches, ComeFromStreamsToo) {
  expect_filled_up([](int64_t size, const DataLoaderOptions& options) { return DataLoader(Counted{size}, options); });
}

TEST(FillerBatches, AreWholeAtTheEndOfBatchSamplers) {
  expect_filled_up([](int64_t size, const DataLoaderOptions&) {
    Batches listed;
    for (int64_t i = 0; i < size; i += 2) {
      listed.push_back({i});
      if (i + 1 < size) listed.back().push_back(i + 1);
    }
    return DataLoader(numbers(size), BatchListSampler(listed));
  });
}

TEST(FillerBatches, TakeThePlaceOfEvenBatches) {
  const auto loader =
      DataLoader(numbers(5), {.batch_size = 2}).distributed({.filler_batches = true, .rank = 1, .world_size = 2});
  const auto seen = one_pass(loader);
  EXPECT_EQ(seen.batches, (Batches{{2, 3}, {1, 2}}));
  EXPECT_EQ(seen.steps[1].local_real, 0);
  EXPECT_EQ(loader.size(), 2);
  EXPECT_NE(loader.describe().find("last step filled up"), std::string::npos);
}

}  // namespace
}  // namespace muster::data::testing
