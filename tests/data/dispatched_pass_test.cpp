#include <array>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <variant>

#include <gtest/gtest.h>
#include <torch/data/example.h>

#include "data/pass.h"
#include "muster/data/sample_split.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"
#include "streams.h"

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

/// Gives whole batches and refuses empty ones, as datasets of LibTorch do.
struct WholeBatches {
  int64_t count, offset;
  int64_t size() const { return count; }
  at::Tensor get_batch(std::span<const int64_t> indices) const {
    if (indices.empty()) throw std::runtime_error("an empty batch was asked for");
    return at::tensor(std::vector<int64_t>(indices.begin(), indices.end())) + offset;
  }
};

enum class From { stream, samples, batches, sampler };

DataLoader<at::Tensor> loader_of(From from, int rank, int64_t samples, const DataLoaderOptions& options) {
  // Elsewhere than on rank 0 the data are others, if anybody asked.
  const int64_t offset = rank == 0 ? 0 : 1000;
  const auto get = [offset](int64_t i) { return i + offset; };
  switch (from) {
    case From::stream: return DataLoader(Counted{rank == 0 ? samples : 1000}, options);
    case From::samples: return DataLoader(get, samples, options);
    case From::batches: return DataLoader(WholeBatches{samples, offset}, options);
    case From::sampler: return DataLoader(Function{get, samples}, SequentialSampler(samples), options);
  }
  return DataLoader(get, samples, options);
}

/// What each rank is given by a loader of data that only rank 0 reads.
std::vector<Seen> dispatch(int world, int64_t samples, DataLoaderOptions options, From from = From::stream) {
  options.dispatch_batches = true;
  std::vector<Seen> seen(world);
  muster::testing::run_threads(world, 0, [&](comm::Communicator group) {
    const int rank = group.rank();
    auto loader =
        loader_of(from, rank, samples, options)
            .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = rank, .world_size = world});
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
  for (const auto from : {From::stream, From::samples, From::batches, From::sampler}) {
    const auto seen = dispatch(world, samples, testing::options_of(c), from);
    for (int rank = 0; rank < world; ++rank) {
      EXPECT_EQ(seen[rank].batches, without_empty_batches(c.at("ranks")[rank].get<Batches>(), samples, rank))
          << "rank " << rank;
      EXPECT_EQ(seen[rank].real, seen[0].real);
      if (!c.at("remainder").is_null()) {
        EXPECT_EQ(seen[rank].real.back(), c.at("remainder").get<int64_t>());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, DispatcherCase,
                         ::testing::Range(0, static_cast<int>(stream_cases("dispatcher_cases").size())));

TEST(DispatchedPass, UnevenPiecesRepeatNothing) {
  for (const auto from : {From::stream, From::samples, From::batches, From::sampler})
    for (const int64_t n : {0, 1, 2, 5, 8, 9, 13})
      for (const int workers : {0, 2}) {
        const auto seen = dispatch(4, n, {.batch_size = 2, .even_batches = false, .workers = workers}, from);
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

struct RawOptions {
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<std::pair<std::string, at::Tensor>> next() {
    if (at == 5) throw std::runtime_error("no more ink");
    ++at;
    return std::pair(std::string(at, 'x'), at::full({at}, static_cast<double>(at)));
  }
};

TEST(DispatchedPass, BatchesOfAnyShapeAndFailuresReachEveryRank) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const DataLoaderOptions options{.dispatch_batches = true};
    auto loader =
        DataLoader(RawOptions(), options)
            .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 2});
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

struct Named {
  at::Tensor tensor;
  const char* name;
};

using tree::sendable;
static_assert(sendable<at::Tensor> && sendable<torch::data::Example<>> && sendable<torch::data::TensorExample> &&
              sendable<Odd>);
static_assert(sendable<std::tuple<at::Tensor, int, std::pair<std::string, std::optional<at::Tensor>>>> &&
              sendable<std::map<std::string, at::Tensor>>);
static_assert(sendable<std::array<at::Tensor, 2>> && sendable<std::variant<std::monostate, at::Tensor>> &&
              sendable<std::vector<std::string>>);
static_assert(!sendable<Named> && !sendable<std::vector<Odd>> && !sendable<std::optional<Odd>> &&
              !sendable<std::string_view>);

/// Data with indices whose batches bytes cannot stand for.
struct NamedBatches {
  int64_t size() const { return 4; }
  Named get_batch(std::span<const int64_t>) const { return {at::ones({1}), "x"}; }
};

TEST(DispatchedPass, BatchesThatNobodyCanMakeAreRefused) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    auto two = [](int64_t) { return std::vector<Odd>(2, Odd(at::ones({1}))); };
    auto loader =
        DataLoader(two, {.dispatch_batches = true})
            .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 2});
    auto all = [&] {
      for (auto& batch : loader) (void)batch;
    };
    EXPECT_EQ(muster::testing::thrown_id(all), group.rank() == 0 ? "no error" : "MU112");
    auto named =
        DataLoader(NamedBatches(), {.dispatch_batches = true})
            .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 2});
    const auto text = muster::testing::thrown([&] { named.begin(); });
    EXPECT_NE(text.find("MU112"), std::string::npos) << text;
  });
}

TEST(DispatchedPass, SkipsAndBreaksOffTogether) {
  muster::testing::run_threads(2, 0, [](comm::Communicator group) {
    const DataLoaderOptions options{.batch_size = 3, .dispatch_batches = true, .workers = 1};
    for (const auto from : {From::stream, From::samples, From::batches, From::sampler}) {
      auto loader =
          loader_of(from, group.rank(), 20, options)
              .distributed(
                  {.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 2});
      auto first = [&] { return list(*loader.begin()).front(); };
      EXPECT_EQ(first(), 3 * group.rank());
      loader = skip_first_batches(loader, 2);
      EXPECT_EQ(first(), 12 + 3 * group.rank());
      EXPECT_EQ(first(), 3 * group.rank());
    }
  });
  EXPECT_TRUE(testing::no_worker_left());
}

TEST(DispatchedPass, ShufflesAsEveryRankWouldByItself) {
  const auto data = testing::numbers(23);
  const DataLoaderOptions options{.batch_size = 2, .seed = 3, .shuffle = true};
  std::vector<int64_t> order;
  for (const auto& batch : testing::run(DataLoader(data, options)))
    order.insert(order.end(), batch.begin(), batch.end());
  std::vector<int64_t> all;
  const auto seen = dispatch(3, 23, options, From::samples);
  for (std::size_t step = 0; step < seen[0].batches.size(); ++step)
    for (const auto& rank : seen) all.insert(all.end(), rank.batches[step].begin(), rank.batches[step].end());
  order.push_back(order.front());  // 5 in the last step, which three ranks share
  EXPECT_EQ(all, order);
}

TEST(DispatchedPass, WorksBetweenProcesses) {
  muster::testing::expect_processes(2, [](comm::Communicator group) {
    const DataLoaderOptions options{.batch_size = 2, .dispatch_batches = true};
    auto loader =
        DataLoader(Counted{7}, options)
            .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 2});
    EXPECT_EQ(testing::run(loader), group.rank() == 0 ? (Batches{{0, 1}, {4, 5}}) : (Batches{{2, 3}, {6, 0}}));
  });
}

}  // namespace
}  // namespace muster::data
