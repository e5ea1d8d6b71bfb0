#include "data/pass.h"

#include <ranges>
#include <set>

#include <gtest/gtest.h>

#include "datasets.h"

namespace muster::data {
namespace {

using testing::Batches;
using testing::list;
using testing::Noisy;
using testing::numbers;
using testing::run;
using testing::Stepped;

const auto kData = numbers(53);

TEST(Pass, ResumesAtEveryBatchAsIfNeverInterrupted) {
  for (const int workers : {0, 1, 3})
    for (const bool stepped : {false, true}) {
      const DataLoaderOptions options{.batch_size = 4, .seed = 5, .shuffle = !stepped, .workers = workers};
      auto make = [&] { return stepped ? DataLoader(kData, Stepped(53), options) : DataLoader(kData, options); };
      auto whole = make();
      whole.set_epoch(2);
      const auto expected = run(whole);
      for (int64_t from = 0; from <= whole.size(); ++from) {
        auto resumed = make();
        resumed.set_epoch(2);
        resumed.seek(from);
        EXPECT_EQ(resumed.num_yielded(), from);
        EXPECT_EQ(run(resumed), Batches(expected.begin() + from, expected.end()));
        EXPECT_EQ(resumed.epoch(), 3);
      }
    }
}

TEST(Pass, RanksTogetherSeeTheOrderOfOneProcess) {
  for (const int64_t n : {53, 64, 7})
    for (const int world : {1, 2, 3, 4}) {
      const auto data = numbers(n);
      const DataLoader whole(data, {.batch_size = 4, .seed = 11, .shuffle = true});
      std::vector<int64_t> alone, together;
      for (const auto& batch : run(whole)) alone.insert(alone.end(), batch.begin(), batch.end());
      std::vector<Batches> ranks;
      for (int rank = 0; rank < world; ++rank)
        ranks.push_back(run(whole.distributed({.rank = rank, .world_size = world})));
      // The copies begin at the epoch of their original, which has moved on.
      auto first = whole;
      first.set_epoch(0);
      ranks.clear();
      for (int rank = 0; rank < world; ++rank)
        ranks.push_back(run(first.distributed({.rank = rank, .world_size = world})));
      for (std::size_t step = 0; step < ranks[0].size(); ++step)
        for (const auto& rank : ranks) together.insert(together.end(), rank[step].begin(), rank[step].end());
      ASSERT_GE(together.size(), alone.size());
      together.resize(alone.size());
      EXPECT_EQ(together, alone) << n << " samples, world " << world;
    }
}

TEST(Pass, SeedComesFromTheJobWhereOptionsNameNone) {
  const DataLoader loader(kData, {.batch_size = 4, .shuffle = true});
  auto order = [&](uint64_t seed) { return run(loader.distributed({.seed = seed, .world_size = 2})); };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
  const DataLoader fixed(kData, {.batch_size = 4, .seed = 3, .shuffle = true});
  EXPECT_EQ(run(fixed.distributed({.seed = 1, .world_size = 2})), run(fixed.distributed({.seed = 2, .world_size = 2})));
}

TEST(Pass, EpochAdvancesOnlyWhenThePassRanOut) {
  DataLoader loader(kData, {.batch_size = 10, .seed = 1, .shuffle = true});
  for (auto& batch : loader) {
    (void)batch;
    if (loader.num_yielded() == 2) break;
  }
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_EQ(loader.num_yielded(), 2);
  EXPECT_FALSE(loader.end_of_dataloader());
  const auto epoch0 = run(loader);
  EXPECT_EQ(epoch0.size(), 6u);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(loader.num_yielded(), 0);
  EXPECT_NE(run(loader), epoch0);
  loader.set_epoch(0);
  EXPECT_EQ(run(loader), epoch0);
}

TEST(Pass, ABrokenOffPassContinuesWhereAsked) {
  DataLoader loader(kData, {.batch_size = 10, .workers = 2});
  for (auto& batch : loader) {
    (void)batch;
    if (loader.num_yielded() == 2) break;
  }
  loader.seek(loader.num_yielded());
  const auto rest = run(loader);
  ASSERT_EQ(rest.size(), 4u);
  EXPECT_EQ(rest[0][0], 20);
}

TEST(Pass, TellsTheLastBatchWhileItIsInHand) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(kData, {.batch_size = 20, .workers = workers});
    std::vector<bool> last;
    for (auto& batch : loader) last.push_back((void(batch), loader.end_of_dataloader()));
    EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
    EXPECT_FALSE(loader.end_of_dataloader());
  }
}

TEST(Pass, KnowsTheIndicesOfItsBatch) {
  for (const int workers : {0, 2})
    for (const bool shuffle : {false, true}) {
      DataLoader loader(kData, {.batch_size = 20, .shuffle = shuffle, .workers = workers});
      const auto pass = loader.state()->begin_pass();
      EXPECT_TRUE(pass->indices().empty());
      int64_t seen = 0;
      while (auto* box = pass->next()) {
        const auto& batch = *static_cast<BatchBoxOf<at::Tensor>&>(*box).batch;
        EXPECT_EQ(pass->indices(), list(batch));
        seen += batch.numel();
      }
      EXPECT_EQ(seen, 53);
      EXPECT_TRUE(pass->indices().empty());
    }
}

TEST(Pass, EmptyDataGivesNothing) {
  const std::vector<int64_t> none;
  for (const int workers : {0, 2}) EXPECT_TRUE(run(DataLoader(none, {.batch_size = 3, .workers = workers})).empty());
}

TEST(Pass, ANewPassEndsTheRunningOne) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(kData, {.batch_size = 10, .workers = workers});
    auto outer = loader.begin();
    EXPECT_EQ(run(loader).size(), 6u);
    EXPECT_EQ(list(*outer)[0], 0);
    try {
      ++outer;
      ADD_FAILURE() << "went on";
    } catch (const UsageError& e) {
      EXPECT_EQ(e.id(), "MU106");
    }
  }
}

TEST(Pass, IteratorsOutliveTheirLoader) {
  auto begin = [] { return DataLoader(numbers(6), {.batch_size = 2, .workers = 1}).begin(); };
  int64_t n = 0;
  for (auto it = begin(); it != std::default_sentinel; ++it) n += (*it).numel();
  EXPECT_EQ(n, 6);
}

TEST(Pass, WorksWithViews) {
  const DataLoader loader(kData, {.batch_size = 10});
  int n = 0;
  for (auto& batch : loader | std::views::take(2)) n += static_cast<int>(batch.numel());
  EXPECT_EQ(n, 20);
}

TEST(Pass, SeekBeyondTheEndIsRefused) {
  DataLoader loader(kData, {.batch_size = 10});
  try {
    loader.seek(7);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& e) {
    EXPECT_EQ(e.id(), "MU108");
  }
}

TEST(LoaderState, RefusesOptionsThatMakeNoSense) {
  EXPECT_THROW(DataLoader(kData, {.batch_size = 0}), ConfigError);
  EXPECT_THROW(DataLoader(kData, {.workers = -1}), ConfigError);
  EXPECT_THROW(DataLoader(kData, {.prefetch = 0}), ConfigError);
  EXPECT_THROW(DataLoader(kData, SequentialSampler(53), {.shuffle = true}), ConfigError);
}

TEST(LoaderState, SaysWhatItDoes) {
  const DataLoader loader(kData, {.batch_size = 4, .seed = 5, .shuffle = true, .workers = 2});
  EXPECT_EQ(loader.distributed({.world_size = 2}).describe(),
            "shuffled, seed 5, 53 samples, batch 4 x 2 ranks, 7 batches, last step padded, 2 workers, to cpu");
  EXPECT_EQ(loader.batch_size(), 4);
  EXPECT_EQ(loader.distributed({.world_size = 2}).total_batch_size(), 8);
  EXPECT_EQ(loader.distributed({.split_batches = true, .world_size = 2}).batch_size(), 2);
  EXPECT_EQ(loader.distributed({.world_size = 2}).remainder(), 5);
  EXPECT_EQ(loader.dataset_size(), 53);
}

}  // namespace
}  // namespace muster::data
