#include "data/dispatched_pass.h"

#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "streams.h"

#include <gtest/gtest.h>

#include <mutex>

namespace muster::data {
namespace {

using testing::Batches;
using testing::Counted;
using testing::list;
using testing::stream_cases;

struct Seen {
  Batches batches;
  std::vector<int64_t> local_real, real;
};

/// What each rank is given by a loader of a stream that only rank 0 reads.
std::vector<Seen> dispatch(int world, int64_t samples, DataLoaderOptions options) {
  options.dispatch_batches = true;
  std::vector<Seen> seen(world);
  muster::testing::run_threads(world, 0, [&](dist::Communicator group) {
    const int rank = group.rank();
    // Elsewhere the stream would give other samples, if anybody asked.
    auto loader = DataLoader(Counted{rank == 0 ? samples : 1000}, options).distributed({.group = group, .rank = rank, .world_size = world});
    for (auto& batch : loader) {
      seen[rank].batches.push_back(list(batch));
      seen[rank].local_real.push_back(loader.local_real_samples());
      seen[rank].real.push_back(loader.real_samples());
      EXPECT_EQ(loader.local_samples(), batch.numel());
    }
    EXPECT_EQ(loader.epoch(), 1);
    group.barrier();
  });
  return seen;
}

/// Where the reference gives a rank nothing to do, it is given the next repeated sample instead.
Batches without_empty_batches(const Batches& expected, int64_t samples, int rank) {
  Batches filled = expected;
  for (auto& batch : filled)
    if (batch.empty()) batch = {rank % samples};
  return filled;
}

class DispatcherCase : public ::testing::TestWithParam<int> {};

TEST_P(DispatcherCase, IsDealtAsTheReferenceDoes) {
  const auto& c = stream_cases("dispatcher_cases")[GetParam()];
  SCOPED_TRACE(c.dump());
  const int world = c.at("world_size");
  const int64_t samples = c.at("dataset_len");
  const auto seen = dispatch(world, samples, testing::options_of(c));
  for (int rank = 0; rank < world; ++rank) {
    EXPECT_EQ(seen[rank].batches, without_empty_batches(c.at("ranks")[rank].get<Batches>(), samples, rank)) << "rank " << rank;
    EXPECT_EQ(seen[rank].real, seen[0].real);
    if (!c.at("remainder").is_null()) { EXPECT_EQ(seen[rank].real.back(), c.at("remainder").get<int64_t>()); }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, DispatcherCase, ::testing::Range(0, static_cast<int>(stream_cases("dispatcher_cases").size())));

TEST(DispatchedPass, UnevenPiecesRepeatNothing) {
  for (const int64_t n : {0, 1, 2, 5, 8, 9, 13})
    for (const int workers : {0, 2}) {
      const auto seen = dispatch(4, n, {.batch_size = 2, .even_batches = false, .workers = workers});
      std::vector<int64_t> all;
      for (std::size_t step = 0; step < seen[0].batches.size(); ++step)
        for (const auto& rank : seen)
          if (step < rank.batches.size()) all.insert(all.end(), rank.batches[step].begin(), rank.batches[step].end());
      EXPECT_EQ(all, testing::numbers(n));
    }
}

TEST(DispatchedPass, AnEmptyStreamIsACleanEpoch) {
  for (const auto& rank : dispatch(3, 0, {.batch_size = 2})) EXPECT_TRUE(rank.batches.empty());
}

struct Texts {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<std::pair<std::string, at::Tensor>> next() {
    if (at == 5) throw std::runtime_error("no more ink");
    ++at;
    return std::pair(std::string(at, 'x'), at::full({at}, static_cast<double>(at)));
  }
};

TEST(DispatchedPass, BatchesOfAnyShapeAndFailuresReachEveryRank) {
  muster::testing::run_threads(2, 0, [](dist::Communicator group) {
    const DataLoaderOptions options{.dispatch_batches = true};
    auto loader = DataLoader(Texts(), options).distributed({.group = group, .rank = group.rank(), .world_size = 2});
    int steps = 0;
    try {
      for (auto& [text, values] : loader) {
        const int64_t expected = 2 * steps++ + group.rank() + 1;
        EXPECT_EQ(text, (std::vector<std::string>{std::string(expected, 'x')}));
        EXPECT_EQ(values.sizes(), at::IntArrayRef({1, expected}));
        EXPECT_EQ(values.sum().item<int64_t>(), expected * expected);
      }
      ADD_FAILURE() << "went on";
    } catch (const DatasetError& error) {
      EXPECT_EQ(error.index(), 5);
      EXPECT_NE(std::string(error.what()).find("no more ink"), std::string::npos);
    }
    EXPECT_EQ(steps, 2);
  });
}

/// Batches without a default constructor.
class Odd {
 public:
  explicit Odd(at::Tensor t) : t_(std::move(t)) {}
  friend auto tensors_of(Odd& odd) { return std::tie(odd.t_); }

 private:
  at::Tensor t_;
};

TEST(DispatchedPass, BatchesThatNobodyCanMakeAreRefused) {
  muster::testing::run_threads(2, 0, [](dist::Communicator group) {
    auto two = [](int64_t) { return std::vector<Odd>(2, Odd(at::ones({1}))); };
    auto loader = DataLoader(two, {.dispatch_batches = true}).distributed({.group = group, .rank = group.rank(), .world_size = 2});
    auto all = [&] {
      for (auto& batch : loader) (void)batch;
    };
    EXPECT_EQ(muster::testing::thrown_id(all), group.rank() == 0 ? "no error" : "MU112");
  });
}

TEST(DispatchedPass, SkipsAndBreaksOffTogether) {
  muster::testing::run_threads(2, 0, [](dist::Communicator group) {
    const DataLoaderOptions options{.batch_size = 3, .dispatch_batches = true, .workers = 1};
    auto loader = DataLoader(Counted{20}, options).distributed({.group = group, .rank = group.rank(), .world_size = 2});
    auto first = [&] { return list(*loader.begin()).front(); };
    EXPECT_EQ(first(), 3 * group.rank());
    loader = skip_first_batches(loader, 2);
    EXPECT_EQ(first(), 12 + 3 * group.rank());
    EXPECT_EQ(first(), 3 * group.rank());
  });
  EXPECT_TRUE(testing::no_worker_left());
}

TEST(DispatchedPass, WorksBetweenProcesses) {
  muster::testing::expect_processes(2, [](dist::Communicator group) {
    const DataLoaderOptions options{.batch_size = 2, .dispatch_batches = true};
    auto loader = DataLoader(Counted{7}, options).distributed({.group = group, .rank = group.rank(), .world_size = 2});
    EXPECT_EQ(testing::run(loader), group.rank() == 0 ? (Batches{{0, 1}, {4, 5}}) : (Batches{{2, 3}, {6, 0}}));
  });
}

}  // namespace
}  // namespace muster::data
