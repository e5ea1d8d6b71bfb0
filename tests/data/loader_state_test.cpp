#include "muster/data/detail/loader_state.h"

#include <gtest/gtest.h>

#include "muster/data/sample_split.h"
#include "muster/testing/thrown.h"
#include "streams.h"

namespace muster::data {
namespace {

using testing::Batches;
using testing::Counted;
using testing::list;
using testing::numbers;
using testing::run;

TEST(LoaderPosition, MovesToAnotherWorldSize) {
  const auto data = numbers(53);
  const DataLoaderOptions options{.batch_size = 4, .seed = 7, .shuffle = true};
  auto whole = DataLoader(data, options);
  whole.set_epoch(2);
  const auto order = run(whole);
  auto two = DataLoader(data, options).distributed({.rank = 1, .world_size = 2});
  two.set_epoch(2);
  two.seek(3);
  const auto saved = two.save_position();
  EXPECT_EQ(saved, (LoaderPosition{.dataset = "", .epoch = 2, .samples = 24, .seed = 7}));
  auto one = DataLoader(data, {.batch_size = 4, .seed = 1, .shuffle = true});
  one.load_position(saved);
  EXPECT_EQ(run(one), Batches(order.begin() + 6, order.end()));
  auto prepared_later = DataLoader(data, options);
  prepared_later.load_position(saved);
  EXPECT_EQ(prepared_later.distributed({.world_size = 3}).num_yielded(), 2);
  auto negative = saved;
  negative.samples = -1;
  EXPECT_EQ(muster::testing::thrown_id([&] { one.load_position(negative); }), "MU114");
}

TEST(LoaderPosition, OfTheLastBatchLeavesNothingOfTheEpoch) {
  const auto data = numbers(10);
  DataLoader loader(data, {.batch_size = 4});
  LoaderPosition last;
  for (auto& batch : loader) last = (void(batch), loader.save_position());
  DataLoader resumed(data, {.batch_size = 4});
  resumed.load_position(last);
  EXPECT_TRUE(run(resumed).empty());
  EXPECT_EQ(resumed.epoch(), 1);
  EXPECT_EQ(run(resumed).size(), 3u);
}

TEST(SkipFirstBatches, CountsForOnePassOnly) {
  for (const bool streamed : {false, true})
    for (const int workers : {0, 2}) {
      const DataLoaderOptions options{.batch_size = 2, .workers = workers};
      const auto data = numbers(10);
      auto loader = (streamed ? DataLoader(Counted{10}, options) : DataLoader(data, options))
                        .distributed({.rank = 1, .world_size = 2});
      auto resumed = skip_first_batches(loader, 1);
      Batches seen;
      std::vector<int64_t> real;
      for (auto& batch : resumed) {
        seen.push_back(list(batch));
        real.push_back(resumed.real_samples());
      }
      EXPECT_EQ(seen, (Batches{{6, 7}, {0, 1}}));
      EXPECT_EQ(real, (std::vector<int64_t>{4, 2}));
      EXPECT_EQ(loader.epoch(), 1);
      EXPECT_EQ(run(resumed).size(), 3u);
    }
}

/// Times that a text is in another.
int64_t times(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

TEST(RepeatedSamples, AreSaidOncePerLoaderByTheMainRank) {
  const auto said = [](const auto& whole, int rank, int world) {
    auto loader = whole.distributed({.rank = rank, .world_size = world});
    ::testing::internal::CaptureStderr();
    for (int epoch = 0; epoch < 2; ++epoch) run(loader);
    return ::testing::internal::GetCapturedStderr();
  };
  const auto data = numbers(12);
  for (const int workers : {0, 2}) {
    const DataLoader tiny(data, {.batch_size = 200, .split_batches = true, .workers = workers});
    const auto text = said(tiny, 0, 2);
    EXPECT_EQ(times(text, "188 of the last step's 200 samples are repeated"), 1) << text;
    for (const char* word : {"even_batches", "gather_for_metrics", "collector", "by reduce", "drop_last"})
      EXPECT_EQ(times(text, word), 1) << text;
    EXPECT_EQ(times(text, "\n"), 1) << text;
    EXPECT_EQ(said(tiny, 1, 2), "");
    EXPECT_EQ(said(tiny, 0, 1), "");
  }
  EXPECT_EQ(
      times(said(DataLoader(Counted{10}, {.batch_size = 4}), 0, 2), "6 of the last step's 8 samples are repeated"), 1);
  EXPECT_EQ(said(DataLoader(data, {.batch_size = 3}), 0, 2), "");
  EXPECT_EQ(said(DataLoader(data, {.batch_size = 5, .drop_last = true}), 0, 2), "");
  EXPECT_EQ(said(DataLoader(data, {.batch_size = 5, .even_batches = false}), 0, 2), "");
}

/// A dataset with indices that knows where it stands.
struct Curriculum {
  int64_t level = 0;
  int64_t size() const { return 4; }
  int64_t get(size_t i) { return level * 10 + static_cast<int64_t>(i); }
  std::string state() const { return std::to_string(level); }
  void load_state(const std::string& saved) { level = std::stoll(saved); }
};

TEST(LoaderPosition, CarriesTheStateOfADataSet) {
  Curriculum data{3};
  DataLoader loader(std::ref(data), {.batch_size = 4});
  const auto saved = loader.save_position();
  EXPECT_EQ(saved.dataset, "3");
  data.level = 0;
  loader.load_position(saved);
  EXPECT_EQ(run(loader), (Batches{{30, 31, 32, 33}}));
}

/// What a loader of the numbers below n gives the ranks of a world, step by step, once padding is cut off.
template <class Make>
std::vector<int64_t> gathered(const Make& make, int world) {
  std::vector<std::vector<std::vector<int64_t>>> steps;
  std::vector<int64_t> real;
  for (int rank = 0; rank < world; ++rank) {
    auto loader = make().distributed({.rank = rank, .world_size = world});
    std::size_t step = 0;
    for (auto& batch : loader) {
      if (step == steps.size()) steps.emplace_back(), real.push_back(loader.real_samples());
      EXPECT_EQ(loader.real_samples(), real[step]);
      EXPECT_EQ(loader.local_samples(), batch.numel());
      steps[step++].push_back(list(batch));
    }
  }
  std::vector<int64_t> all;
  for (std::size_t step = 0; step < steps.size(); ++step) {
    std::vector<int64_t> joined;
    for (const auto& part : steps[step]) joined.insert(joined.end(), part.begin(), part.end());
    EXPECT_GE(static_cast<int64_t>(joined.size()), real[step]);
    all.insert(all.end(), joined.begin(),
               joined.begin() + std::min<int64_t>(real[step], static_cast<int64_t>(joined.size())));
  }
  return all;
}

class Growing : public BatchSampler {
 public:
  explicit Growing(int64_t n) {
    for (int64_t i = 0; i < n;) {
      auto& batch = batches_.emplace_back();
      for (std::size_t k = 0; k <= batches_.size() % 7 && i < n; ++k) batch.push_back(i++);
    }
  }
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }
  void start(int64_t) override { at_ = 0; }
  std::vector<int64_t> next() override { return batches_.at(at_++); }

 private:
  std::size_t at_ = 0;
  Batches batches_;
};

TEST(Evaluation, CountsEachSampleOnceAndInOrderInEveryConfiguration) {
  for (const int64_t n : {1, 7, 64, 65, 1000})
    for (int world = 1; world <= 4; ++world)
      for (const bool even : {true, false})
        for (const int workers : {0, 2}) {
          const auto data = numbers(n);
          SCOPED_TRACE(std::to_string(n) + " samples, " + std::to_string(world) + " ranks, even " +
                       std::to_string(even));
          for (const bool split : {false, true}) {
            const DataLoaderOptions options{
                .batch_size = 12, .even_batches = even, .split_batches = split, .workers = workers};
            EXPECT_EQ(gathered([&] { return DataLoader(data, options); }, world), data);
            EXPECT_EQ(gathered([&] { return DataLoader(data, SequentialSampler(n), options); }, world), data);
            EXPECT_EQ(gathered([&] { return DataLoader(Counted{n}, options); }, world), data);
          }
          const DataLoaderOptions options{.even_batches = even, .workers = workers};
          EXPECT_EQ(gathered([&] { return DataLoader(data, Growing(n), options); }, world), data);
        }
}

TEST(Evaluation, ASkipLeavesOutWholeSteps) {
  for (int world = 1; world <= 4; ++world) {
    const auto data = numbers(65);
    const DataLoaderOptions options{.batch_size = 4};
    auto rest = gathered(
        [&] {
          auto loader = DataLoader(data, options);
          loader.load_position({.dataset = {}, .epoch = 0, .samples = 48, .seed = 0});
          return loader;
        },
        world);
    EXPECT_EQ(rest, std::vector<int64_t>(data.begin() + 48, data.end()));
  }
}

}  // namespace
}  // namespace muster::data
