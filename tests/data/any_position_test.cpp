#include <gtest/gtest.h>

#include "muster/data/sample_split.h"
#include "muster/testing/gtest.h"
#include "streams.h"

// A saved position goes on with any number of ranks and any batch size: each sample from it on comes once, in order.

namespace muster::data {
namespace {

using testing::Batches;
using testing::Counted;
using testing::list;
using testing::numbers;
using testing::Seekable;
using testing::Stepped;

constexpr int64_t kSamples = 23;

/// Batches of 1, 2, 3, 1, 2, 3, ... samples.
Batches uneven_batches() {
  Batches all;
  for (int64_t i = 0; i < kSamples;) {
    auto& batch = all.emplace_back();
    for (std::size_t k = 0; k <= (all.size() - 1) % 3 && i < kSamples; ++k) batch.push_back(i++);
  }
  return all;
}

DataLoader<at::Tensor> loader_of(const std::string& kind, const DataLoaderOptions& options) {
  if (kind == "stream") return DataLoader(Counted{kSamples}, options);
  if (kind == "stream that skips") return DataLoader(Seekable{kSamples}, options);
  if (kind == "sampler") return DataLoader(numbers(kSamples), Stepped(kSamples), options);
  if (kind == "batches") return DataLoader(numbers(kSamples), BatchListSampler(uneven_batches()), {});
  auto shuffled = options;
  shuffled.shuffle = kind == "shuffled";
  return DataLoader(numbers(kSamples), shuffled);
}

/// The samples of a whole pass, and what a position is counted in.
std::vector<int64_t> whole_pass(const std::string& kind) {
  std::vector<int64_t> all;
  for (const auto& batch : testing::run(loader_of(kind, {.batch_size = 1, .seed = 7})))
    all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

/// The real samples of one rank's batches from a position on.
Batches batches_from(DataLoader<at::Tensor> loader, int64_t position) {
  loader.load_position({.dataset = "", .epoch = 0, .samples = position, .seed = 7});
  Batches result;
  const int64_t step = loader.total_batch_size();
  for (auto& batch : loader) {
    auto values = list(batch);
    values.resize(static_cast<std::size_t>(loader.local_real_samples()));
    result.push_back(std::move(values));
    if (step > 0) {
      EXPECT_EQ(loader.save_position().samples, position + step * static_cast<int64_t>(result.size()));
    }
  }
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(loader.save_position().samples, 0) << "the next pass is a whole one";
  return result;
}

std::vector<int64_t> in_order(const std::vector<Batches>& ranks) {
  std::vector<int64_t> all;
  for (std::size_t step = 0;; ++step) {
    bool any = false;
    for (const auto& batches : ranks)
      if (step < batches.size()) {
        any = true;
        all.insert(all.end(), batches[step].begin(), batches[step].end());
      }
    if (!any) return all;
  }
}

class AnyPosition : public ::testing::TestWithParam<const char*> {};

TEST_P(AnyPosition, GoesOnWithAnyWorldAndBatchSize) {
  const std::string kind = GetParam();
  const auto whole = whole_pass(kind);
  for (int world = 1; world <= 4; ++world)
    for (int64_t batch_size = 1; batch_size <= 4; ++batch_size)
      for (const bool even : {true, false})
        for (int64_t position = 0; position <= kSamples; ++position) {
          std::vector<Batches> ranks;
          for (int rank = 0; rank < world; ++rank)
            ranks.push_back(batches_from(loader_of(kind, {.batch_size = batch_size, .even_batches = even, .seed = 7})
                                             .distributed({.rank = rank, .world_size = world}),
                                         position));
          EXPECT_EQ(in_order(ranks), std::vector<int64_t>(whole.begin() + position, whole.end()))
              << "from " << position << " on " << world << " ranks in batches of " << batch_size;
        }
}

INSTANTIATE_TEST_SUITE_P(Kinds, AnyPosition,
                         ::testing::Values("sequential", "shuffled", "sampler", "stream", "stream that skips"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, ' ');
                           return name;
                         });

TEST(AnyPositionOfBatches, IsCountedInBatches) {
  const auto batches = uneven_batches();
  for (int world = 1; world <= 4; ++world)
    for (std::size_t position = 0; position <= batches.size(); ++position) {
      std::vector<Batches> ranks;
      for (int rank = 0; rank < world; ++rank)
        ranks.push_back(batches_from(loader_of("batches", {}).distributed({.rank = rank, .world_size = world}),
                                     static_cast<int64_t>(position)));
      std::vector<int64_t> rest;
      for (auto i = position; i < batches.size(); ++i) rest.insert(rest.end(), batches[i].begin(), batches[i].end());
      EXPECT_EQ(in_order(ranks), rest) << "from batch " << position << " on " << world << " ranks";
    }
}

TEST(AnyPositionOfADispatchedPass, GoesOnWithAnyWorldSize) {
  for (const char* kind : {"sequential", "sampler", "stream"})
    for (int world : {2, 3})
      for (int64_t position : {0, 1, 5, 6, 7, 22, 23}) {
        const auto whole = whole_pass(kind);
        std::vector<Batches> ranks(static_cast<std::size_t>(world));
        muster::testing::run_threads(world, 0, [&](comm::Communicator group) {
          const int rank = group.rank();
          ranks[static_cast<std::size_t>(rank)] = batches_from(
              loader_of(kind, {.batch_size = 3, .dispatch_batches = true, .seed = 7})
                  .distributed(
                      {.group = std::make_shared<comm::Communicator>(group), .rank = rank, .world_size = world}),
              position);
        });
        EXPECT_EQ(in_order(ranks), std::vector<int64_t>(whole.begin() + position, whole.end()))
            << kind << " from " << position << " on " << world << " ranks";
      }
}

TEST(AnyPositionOfAPass, DropsAnIncompleteStepAndMaySeekOn) {
  DataLoader loader(numbers(kSamples), {.batch_size = 4, .drop_last = true});
  loader.load_position({.dataset = "", .epoch = 0, .samples = 6, .seed = 0});
  EXPECT_EQ(loader.num_yielded(), 1);
  EXPECT_EQ(loader.size(), 5);
  EXPECT_EQ(loader.remainder(), -1);
  auto pass = loader.begin();
  EXPECT_EQ(list(*pass), (std::vector<int64_t>{6, 7, 8, 9}));
  loader.seek(loader.num_yielded());
  EXPECT_EQ(testing::run(loader), (Batches{{10, 11, 12, 13}, {14, 15, 16, 17}, {18, 19, 20, 21}}));
  EXPECT_EQ(testing::run(loader).front(), (std::vector<int64_t>{0, 1, 2, 3}));
  loader.load_position({.dataset = "", .epoch = 0, .samples = 6, .seed = 0});
  loader.seek(0);
  EXPECT_EQ(testing::run(loader).front(), (std::vector<int64_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace muster::data
