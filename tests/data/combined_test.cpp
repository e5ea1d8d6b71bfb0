#include "muster/data/combined.h"

#include <gtest/gtest.h>

#include "streams.h"

namespace muster {
namespace {

using data::testing::Counted;
using data::testing::list;
using data::testing::numbers;

// The batches of 6 samples by 4, and of 15 by 5.
const auto kSix = numbers(6);
const auto kFifteen = numbers(15);

using Pairs = std::vector<std::pair<int64_t, int64_t>>;

template <class C>
Pairs first_pairs(const C& combined) {
  Pairs all;
  for (auto [a, b] : combined) all.emplace_back(list(a).front(), list(b).front());
  return all;
}

TEST(CombinedLoaders, EndsWithTheShortest) {
  for (const int workers : {0, 2}) {
    DataLoader a(kSix, {.batch_size = 4, .workers = workers}), b(kFifteen, {.batch_size = 5, .workers = workers});
    const auto both = combine(CombineMode::min_size, a, b);
    EXPECT_EQ(both.size(), 2);
    EXPECT_EQ(first_pairs(both), (Pairs{{0, 0}, {4, 5}}));
    EXPECT_EQ(a.epoch(), 1);
    EXPECT_EQ(b.epoch(), 1);
    EXPECT_EQ(first_pairs(combine(CombineMode::min_size, b, a)), (Pairs{{0, 0}, {5, 4}}));
  }
  EXPECT_TRUE(data::testing::no_worker_left());
}

TEST(CombinedLoaders, EndsWithTheLongestAndBeginsTheOthersAgain) {
  DataLoader a(kSix, {.batch_size = 4}), b(kFifteen, {.batch_size = 5});
  const auto both = combine(CombineMode::max_size_cycle, a, b);
  EXPECT_EQ(both.size(), 3);
  EXPECT_EQ(first_pairs(both), (Pairs{{0, 0}, {4, 5}, {0, 10}}));
  EXPECT_EQ(a.epoch(), 2);
  EXPECT_EQ(b.epoch(), 1);
  EXPECT_EQ(first_pairs(both), (Pairs{{0, 0}, {4, 5}, {0, 10}}));
  EXPECT_EQ(first_pairs(combine(CombineMode::max_size_cycle, a, DataLoader(Counted{15}, {.batch_size = 5}))),
            (Pairs{{0, 0}, {4, 5}, {0, 10}}));
}

TEST(CombinedLoaders, EndsWithTheLongestAndLeavesOutTheOthers) {
  using Firsts = std::vector<std::pair<int64_t, int64_t>>;
  for (const int workers : {0, 2}) {
    DataLoader a(kSix, {.batch_size = 4, .workers = workers}), b(kFifteen, {.batch_size = 5, .workers = workers});
    const auto both = combine_longest(a, b);
    EXPECT_EQ(both.size(), 3);
    for (int pass = 1; pass <= 2; ++pass) {
      Firsts seen;
      for (auto [x, y] : both) seen.emplace_back(x ? list(*x).front() : -1, y ? list(*y).front() : -1);
      EXPECT_EQ(seen, (Firsts{{0, 0}, {4, 5}, {-1, 10}}));
      EXPECT_EQ(std::get<0>(both.loaders()).epoch(), pass);
      EXPECT_EQ(b.epoch(), pass);
    }
  }
  for (auto [x, y] : combine_longest(DataLoader(kSix, {.batch_size = 6}), DataLoader(std::vector<int64_t>()))) {
    EXPECT_NE(x, nullptr);
    EXPECT_EQ(y, nullptr);
  }
  EXPECT_TRUE(data::testing::no_worker_left());
}

TEST(CombinedLoaders, NothingComesOfALoaderWithoutBatches) {
  const std::vector<int64_t> none;
  for (const auto mode : {CombineMode::min_size, CombineMode::max_size_cycle}) {
    const auto both = combine(mode, DataLoader(kSix), DataLoader(none));
    EXPECT_EQ(both.size(), 0);
    EXPECT_TRUE(first_pairs(both).empty());
  }
}

TEST(CombinedLoaders, ABreakLeavesEpochsAlone) {
  DataLoader a(kSix, {.batch_size = 2, .workers = 1});
  for (auto [x, y] : combine(CombineMode::min_size, a, DataLoader(kFifteen))) {
    (void)x, (void)y;
    break;
  }
  EXPECT_EQ(a.epoch(), 0);
  EXPECT_EQ(a.num_yielded(), 1);
  EXPECT_TRUE(data::testing::no_worker_left());
}

TEST(SequencedLoaders, RunsOneAfterTheOther) {
  const std::vector<double> reals{0.5, 1.5};
  const std::vector<std::string> texts{"a", "b", "c"};
  const auto all =
      in_sequence(DataLoader(reals), DataLoader(std::vector<int64_t>()), DataLoader(texts, {.batch_size = 2}));
  EXPECT_EQ(all.size(), 4);
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::tuple<std::size_t, int64_t, std::size_t>> seen;
    for (const auto step : all) {
      const auto held = step.visit([](auto& batch) {
        if constexpr (requires { batch.numel(); }) return static_cast<std::size_t>(batch.numel());
        else return batch.size();
      });
      seen.emplace_back(step.loader_index, step.batch_index, held);
    }
    EXPECT_EQ(seen,
              (std::vector<std::tuple<std::size_t, int64_t, std::size_t>>{{0, 0, 1}, {0, 1, 1}, {2, 0, 2}, {2, 1, 1}}));
  }
}

}  // namespace
}  // namespace muster
