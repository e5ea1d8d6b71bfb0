#include "muster/data/progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/data/combined.h"
#include "muster/data/sample_split.h"
#include "streams.h"

namespace muster::bars {
namespace {

using data::testing::Counted;
using data::testing::list;

/// A loader of 0, 1, ... size - 1, by twos.
auto by_twos(int64_t size) { return DataLoader(data::testing::numbers(size), {.batch_size = 2}); }

/// What a bar prints while `use` goes over it.
template <class L, class F>
std::string shown(const L& loader, F&& use, ProgressOptions options = {}) {
  char* text = nullptr;
  size_t size = 0;
  options.stream = open_memstream(&text, &size);
  options.style = ProgressOptions::Style::lines;
  {
    auto bar = progress(loader, "pass", options);
    use(bar);
  }
  std::fclose(options.stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

int64_t line_count(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

constexpr auto kCount = [](auto& bar) {
  int64_t batches = 0;
  for ([[maybe_unused]] auto&& batch : bar) bar.set("batches", static_cast<double>(++batches));
  EXPECT_EQ(batches, 4);
};

TEST(ProgressBar, GivesTheBatchesOfTheLoader) {
  const auto loader = by_twos(8);
  std::vector<int64_t> seen;
  const auto text = shown(loader, [&](auto& bar) {
    for (auto& batch : bar) {
      for (const auto number : list(batch)) seen.push_back(number);
      bar.set("last", static_cast<double>(seen.back()));
      bar.set("phase", "warm");
    }
  });
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(line_count(text), 4) << text;
  EXPECT_NE(text.find(" 25%  last 1  phase warm"), std::string::npos) << text;
  EXPECT_NE(text.find("100%  last 7  phase warm"), std::string::npos) << text;
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(ProgressBar, EachPassDrawsItsOwn) {
  const auto text = shown(by_twos(8), [](auto& bar) {
    kCount(bar);
    kCount(bar);
    bar.set("batches", 9);  // between passes
  });
  EXPECT_EQ(line_count(text), 8) << text;
  EXPECT_EQ(text.find("batches 9"), std::string::npos) << text;
}

TEST(ProgressBar, ShowsWhereAStoppedPassEnded) {
  const auto text = shown(by_twos(8), [](auto& bar) {
    for (auto& batch : bar)
      if (list(batch).front() == 4) break;
  });
  EXPECT_NE(text.find(" 50%"), std::string::npos) << text;
  EXPECT_EQ(text.find("100%"), std::string::npos) << text;
}

TEST(ProgressBar, CountsWhatAPositionSkipped) {
  auto loader = by_twos(8);
  loader.seek(3);
  const auto text = shown(loader, [](auto& bar) {
    for ([[maybe_unused]] auto& batch : bar) bar.set("here", 1);
  });
  EXPECT_EQ(line_count(text), 1) << text;
  EXPECT_NE(text.find("100%  here 1"), std::string::npos) << text;
}

TEST(ProgressBar, OnlyTheMainRankOfAPreparedLoaderShowsIt) {
  for (const int rank : {0, 1}) {
    const auto loader = by_twos(16).distributed({.rank = rank, .world_size = 2});
    EXPECT_EQ(shown(loader, kCount).empty(), rank == 1);
  }
  EXPECT_EQ(shown(by_twos(8), kCount, {.quiet = true}), "");
}

TEST(ProgressBar, AStreamOfUnknownLengthShowsCounts) {
  const auto text = shown(DataLoader(Counted{8}, {.batch_size = 2}), kCount);
  EXPECT_NE(text.find("pass 4 steps  batches 4"), std::string::npos) << text;
  EXPECT_EQ(text.find('%'), std::string::npos) << text;
}

TEST(ProgressBar, TakesSeveralLoaders) {
  const auto both = combine(CombineMode::min_size, by_twos(8), by_twos(12));
  EXPECT_NE(shown(both, kCount).find("100%  batches 4"), std::string::npos);
  EXPECT_NE(shown(in_sequence(by_twos(4), by_twos(4)), kCount).find("100%  batches 4"), std::string::npos);
  const auto second = in_sequence(by_twos(8).distributed({.rank = 1, .world_size = 2}), by_twos(4));
  EXPECT_EQ(shown(second, kCount), "");
}

}  // namespace
}  // namespace muster::bars
