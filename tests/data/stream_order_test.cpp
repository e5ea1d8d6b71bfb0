#include <list>
#include <ranges>

#include <gtest/gtest.h>
#include <torch/data/datasets/stateful.h>
#include <torch/types.h>

#include "data/batch_order.h"
#include "muster/data/sample_split.h"
#include "muster/testing/thrown.h"
#include "streams.h"

namespace muster::data {
namespace {

using testing::Batches;
using testing::Counted;
using testing::list;
using testing::run;
using testing::Seekable;
using testing::stream_cases;

class IterableCase : public ::testing::TestWithParam<int> {};

TEST_P(IterableCase, IsSplitAsTheReferenceDoes) {
  const auto& c = stream_cases("iterable_shard_cases")[GetParam()];
  SCOPED_TRACE(c.dump());
  const int world = c.at("world_size");
  for (const int workers : {0, 2}) {
    auto options = testing::options_of(c);
    options.workers = workers;
    for (int rank = 0; rank < world; ++rank) {
      const SampleSplit one{.rank = rank, .world_size = world};
      const auto expected = c.at("ranks")[rank].get<Batches>();
      EXPECT_EQ(run(DataLoader(Counted{c.at("dataset_len")}, options).distributed(one)), expected) << "rank " << rank;
      const auto known = DataLoader(Seekable{c.at("dataset_len")}, options).distributed(one);
      EXPECT_EQ(run(known), expected) << "with everything a stream may have, rank " << rank;
      EXPECT_EQ(known.size(), static_cast<int64_t>(expected.size()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, IterableCase,
                         ::testing::Range(0, static_cast<int>(stream_cases("iterable_shard_cases").size())));

TEST(StreamOrder, VectorsAreAllThere) {
  EXPECT_EQ(stream_cases("iterable_shard_cases").size(), 112u);
  EXPECT_EQ(stream_cases("dispatcher_cases").size(), 128u);
}

TEST(StreamOrder, DealsAsMapStyleDataIsDealt) {
  for (const int64_t n : {0, 1, 5, 12, 13, 31})
    for (const bool even : {true, false})
      for (const bool drop : {true, false})
        for (const bool split : {true, false})
          for (int rank = 0; rank < 3; ++rank) {
            const DataLoaderOptions options{
                .batch_size = 3, .drop_last = drop, .even_batches = even, .split_batches = split};
            const SampleSplit one{.rank = rank, .world_size = 3};
            const auto numbers = testing::numbers(n);
            auto mapped = DataLoader(numbers, options).distributed(one);
            auto streamed = DataLoader(Counted{n}, options).distributed(one);
            std::vector<std::tuple<int64_t, int64_t, int64_t, bool>> expected, found;
            for (auto& batch : mapped)
              expected.emplace_back(batch.numel(), mapped.local_real_samples(), mapped.real_samples(),
                                    mapped.end_of_dataloader());
            for (auto& batch : streamed)
              found.emplace_back(batch.numel(), streamed.local_real_samples(), streamed.real_samples(),
                                 streamed.end_of_dataloader());
            EXPECT_EQ(found, expected) << n << " samples, even " << even << ", drop_last " << drop << ", split "
                                       << split << ", rank " << rank;
          }
}

TEST(StreamOrder, TakesRangesAndStatefulDatasetsOfLibTorch) {
  const std::list<int64_t> values{3, 1, 4, 1, 5};
  const DataLoader from_range(
      [&](int64_t epoch) { return values | std::views::transform([epoch](int64_t v) { return v + 10 * epoch; }); },
      {.batch_size = 2});
  EXPECT_EQ(run(from_range), (Batches{{3, 1}, {4, 1}, {5}}));
  EXPECT_EQ(run(from_range), (Batches{{13, 11}, {14, 11}, {15}}));

  struct Stateful : torch::data::datasets::StatefulDataset<Stateful, std::vector<int64_t>> {
    int64_t at = 0;
    void reset() override { at = 0; }
    std::optional<std::vector<int64_t>> get_batch(size_t count) override {
      std::vector<int64_t> some;
      for (; some.size() < count && at < 3; ++at) some.push_back(at);
      return some.empty() ? std::nullopt : std::optional(some);
    }
    std::optional<size_t> size() const override { return std::nullopt; }
    void save(torch::serialize::OutputArchive&) const override {}
    void load(torch::serialize::InputArchive&) override {}
  };
  const DataLoader from_torch(Stateful(), {.batch_size = 2});
  for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(run(from_torch), (Batches{{0, 1}, {2}}));
  EXPECT_FALSE(from_torch.known_size());
}

TEST(StreamOrder, WorkersTransformAndOneReads) {
  struct Reading {
    std::atomic<int>* readers;
    int64_t at = 0;
    void start(int64_t) { at = 0; }
    std::optional<int64_t> next() {
      EXPECT_EQ(readers->fetch_add(1), 0);
      const auto value = at < 200 ? std::optional(at++) : std::nullopt;
      readers->fetch_sub(1);
      return value;
    }
    std::tuple<int64_t, double> transform(int64_t raw, SampleRandom& random) const {
      return {raw * raw, random.uniform()};
    }
  };
  std::vector<std::vector<double>> drawn;
  for (const int workers : {0, 1, 3}) {
    std::atomic<int> readers = 0;
    const DataLoader loader(Reading{&readers}, {.batch_size = 7, .seed = 3, .workers = workers});
    int64_t expected = 0;
    auto& all = drawn.emplace_back();
    for (auto& [squares, noise] : loader) {
      for (const auto square : list(squares)) {
        EXPECT_EQ(square, expected * expected);
        ++expected;
      }
      for (int64_t i = 0; i < noise.numel(); ++i) all.push_back(noise[i].item<double>());
    }
    EXPECT_EQ(expected, 200);
  }
  EXPECT_EQ(drawn[1], drawn[0]);
  EXPECT_EQ(drawn[2], drawn[0]);
  EXPECT_TRUE(testing::no_worker_left());
}

TEST(StreamOrder, ResumesAtEveryBatchAsIfNeverInterrupted) {
  for (const int workers : {0, 2})
    for (int rank = 0; rank < 2; ++rank) {
      const DataLoaderOptions options{.batch_size = 4, .seed = 1, .workers = workers};
      auto make = [&](bool stateful) {
        return stateful ? DataLoader(Seekable{53}, options).distributed({.rank = rank, .world_size = 2})
                        : DataLoader(Counted{53}, options).distributed({.rank = rank, .world_size = 2});
      };
      const auto expected = run(make(false));
      for (const bool stateful : {false, true}) {
        auto whole = make(stateful);
        std::vector<LoaderPosition> saved{whole.save_position()};
        for (auto& batch : whole) saved.push_back((void(batch), whole.save_position()));
        ASSERT_EQ(saved.size(), expected.size() + 1);
        for (std::size_t from = 0; from < saved.size(); ++from) {
          auto resumed = make(stateful);
          resumed.load_position(saved[from]);
          EXPECT_EQ(resumed.save_position(), saved[from]);
          EXPECT_EQ(run(resumed), Batches(expected.begin() + from, expected.end()))
              << "stateful " << stateful << " from " << from;
        }
      }
    }
}

TEST(StreamOrder, AStatefulStreamIsNotReadAgain) {
  auto stream = std::make_shared<Seekable>(Seekable{1000});
  DataLoader loader(stream, {.batch_size = 10});
  for (auto& batch : loader) {
    (void)batch;
    if (loader.num_yielded() == 50) break;
  }
  const auto saved = loader.save_position();
  EXPECT_EQ(saved, (LoaderPosition{.dataset = "500", .epoch = 0, .samples = 500, .seed = saved.seed}));
  stream->reads = 0;
  loader.load_position(saved);
  EXPECT_EQ(list(*loader.begin()).front(), 500);
  EXPECT_EQ(stream->reads, 20);  // the batch, and the one that is read ahead
}

TEST(StreamOrder, LengthsThatNobodyKnowsAreAnError) {
  const DataLoader loader(Counted{5}, {.batch_size = 2});
  EXPECT_EQ(muster::testing::thrown_id([&] { (void)loader.size(); }), "MU113");
  EXPECT_EQ(muster::testing::thrown_id([&] { (void)loader.dataset_size(); }), "MU113");
  EXPECT_EQ(loader.describe(), "stream, unknown length, batch 2 x 1 rank, made by the caller, to cpu");
  EXPECT_EQ(run(skip_first_batches(loader, 9)), Batches());
}

struct Unreadable {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() {
    if (at == 5) throw std::runtime_error("the disk is gone");
    return at++;
  }
};

TEST(StreamOrder, AFailureNamesTheSampleAndComesInItsTurn) {
  for (const int workers : {0, 2}) {
    const DataLoader loader(Unreadable(), {.batch_size = 2, .workers = workers});
    Batches seen;
    try {
      for (auto& batch : loader) seen.push_back(list(batch));
      ADD_FAILURE() << "went on";
    } catch (const DatasetError& error) {
      EXPECT_EQ(error.index(), 5);
    }
    EXPECT_EQ(seen, (Batches{{0, 1}, {2, 3}}));
  }
}

TEST(StreamOrder, RefusesWhatAStreamHasNot) {
  EXPECT_EQ(muster::testing::thrown_id([] { DataLoader(Counted{5}, {.shuffle = true}); }), "MU107");
  EXPECT_EQ(muster::testing::thrown_id([] { DataLoader(Counted{5}, SequentialSampler(5)); }), "MU107");
  EXPECT_EQ(muster::testing::thrown_id(
                [] { DataLoader(Counted{5}, {.dispatch_batches = true}).distributed({.world_size = 2}); }),
            "MU107");
}

}  // namespace
}  // namespace muster::data
