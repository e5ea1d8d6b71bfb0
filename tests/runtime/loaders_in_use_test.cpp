#include "runtime/loaders_in_use.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/data/loader.h"
#include "muster/runtime/metrics.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "runtime/ranks.h"

namespace muster::runtime {
namespace {

using Indices = std::vector<int64_t>;

Indices listed(const torch::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto whole = tensor.contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

/// Where the samples come from and in what order: as they are, by a sampler, by a sampler of batches, or as a stream.
enum class From { indices, sampler, batch_sampler, stream, dispatched_stream, dispatched_indices };

struct Loading {
  int64_t batch_size;
  bool drop_last, even, split;
  int64_t skip;
  int workers;
  From from = From::indices;
};

std::string name_of(const Loading& l) {
  static const char* const names[] = {"indices", "sampler",           "batch sampler",
                                      "stream",  "dispatched stream", "dispatched indices"};
  return std::string(names[static_cast<int>(l.from)]) + ", batch " + std::to_string(l.batch_size) +
         (l.drop_last ? ", drop_last" : "") + (l.even ? ", even" : ", uneven") + (l.split ? ", split" : "") +
         ", skip " + std::to_string(l.skip) + ", workers " + std::to_string(l.workers);
}

struct Counting {
  int64_t n = 0;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return at < n ? std::optional(at++) : std::nullopt; }
};

/// n - 1, ..., 1, 0.
class Backwards : public Sampler {
 public:
  explicit Backwards(int64_t n) : n_(n) {}
  int64_t size() const override { return n_; }
  void start(int64_t) override { next_ = n_; }
  int64_t next() override { return --next_; }

 private:
  int64_t n_;
  int64_t next_ = 0;
};

/// Batches of 1, 2, 3, 4, 5, 1, 2, ... samples in order.
class Varying : public BatchSampler {
 public:
  explicit Varying(int64_t n) {
    for (int64_t first = 0, size = 1; first < n; first += size, size = size % 5 + 1) {
      auto& batch = batches_.emplace_back();
      for (int64_t i = first; i < std::min(n, first + size); ++i) batch.push_back(i);
    }
  }
  int64_t size() const override { return std::ssize(batches_); }
  void start(int64_t) override { at_ = 0; }
  Indices next() override { return batches_.at(at_++); }

 private:
  size_t at_ = 0;
  std::vector<Indices> batches_;
};

DataLoader<torch::Tensor> whole_loader(int64_t count, const Loading& how) {
  const auto same = [](int64_t i) { return i; };
  const auto numbers = data::Function{same, count};
  DataLoaderOptions options{.batch_size = how.batch_size,
                            .drop_last = how.drop_last,
                            .even_batches = how.even,
                            .split_batches = how.split,
                            .workers = how.workers};
  switch (how.from) {
    case From::indices: return DataLoader(same, count, options);
    case From::sampler: return DataLoader(numbers, Backwards(count), options);
    case From::batch_sampler: options.batch_size = 1; return DataLoader(numbers, Varying(count), options);
    case From::stream: return DataLoader(Counting{count}, options);
    case From::dispatched_stream: options.dispatch_batches = true; return DataLoader(Counting{count}, options);
    case From::dispatched_indices: options.dispatch_batches = true; return DataLoader(same, count, options);
  }
  return DataLoader(same, count, options);
}

/// The samples of the pass in order, cut into the steps of all ranks together; steps that are skipped or dropped left
/// out.
Indices expected_of(int64_t count, const Loading& how, int world) {
  Indices order;
  for (int64_t i = 0; i < count; ++i) order.push_back(how.from == From::sampler ? count - 1 - i : i);
  int64_t begin = 0;
  if (how.from == From::batch_sampler) {
    Varying batches(count);
    for (int64_t i = 0; i < std::min(how.skip * world, batches.size()); ++i) begin += std::ssize(batches.next());
    return {order.begin() + begin, order.end()};
  }
  const int64_t step = how.batch_size * (how.split ? 1 : world);
  const int64_t end = how.drop_last ? count / step * step : count;
  return {order.begin() + std::min(end, how.skip * step), order.begin() + end};
}

/// What ranks that take part in every step get, and what each rank collects on its own.
void count_each_sample(int64_t count, const Loading& how, int world) {
  SCOPED_TRACE(::testing::Message() << count << " samples, " << world << " ranks, " << name_of(how));
  testing::run_threads(world, 0, [&](const comm::Communicator& group) {
    auto loader = whole_loader(count, how)
                      .distributed({.group = std::make_shared<comm::Communicator>(group),
                                    .rank = group.rank(),
                                    .world_size = group.size()});
    const bool known = loader.known_size().has_value();
    bool fits = !known || how.skip <= loader.size();
    fits = group.all_gather(torch::tensor(fits)).all().item<bool>();
    if (fits) loader = skip_first_batches(loader, how.skip);
    LoadersInUse loaders;
    loaders.add(loader.state());
    using Names = std::vector<std::string>;
    MetricsCollector<torch::Tensor, Names> collector(group, [&] { return loaders.rows(); });
    const bool meets = how.even || how.drop_last || world == 1;  // in every step
    Indices gathered;
    for (auto& batch : loader) {
      Names names;
      for (const auto i : listed(batch)) names.push_back(std::to_string(i));
      collector.add(batch, names);
      if (!meets) continue;
      const auto [all, nested] =
          gather_for_metrics(group, loaders.rows(), batch, std::map<std::string, Names>{{"names", names}});
      const auto list = listed(all);
      gathered.insert(gathered.end(), list.begin(), list.end());
      ASSERT_EQ(nested.at("names").size(), list.size());
      for (size_t i = 0; i < list.size(); ++i) ASSERT_EQ(nested.at("names")[i], std::to_string(list[i]));
    }
    auto without = how;
    if (!fits) without.skip = 0;
    const auto expected = expected_of(count, without, world);
    if (expected.empty()) {
      EXPECT_EQ(testing::thrown_id([&] { collector.gathered(); }), "MU254");
    } else {
      const auto [all, names] = collector.gathered();
      EXPECT_EQ(listed(all), expected);
      EXPECT_EQ(names.size(), expected.size());
    }
    if (meets) {
      EXPECT_EQ(gathered, expected);
    }
  });
}

class EachSampleOnce : public ::testing::TestWithParam<std::tuple<From, int>> {};

TEST_P(EachSampleOnce, InOrderInEveryConfiguration) {
  const auto [from, world] = GetParam();
  for (const int64_t count : {1, 7, 64, 65, 1000})
    for (const bool drop_last : {false, true})
      for (const bool even : {false, true})
        for (const bool split : {false, true})
          for (const int64_t skip : {0, 1})
            for (const int workers : {0, 2}) {
              const bool batches =
                  from ==
                  From::batch_sampler;  // which it alone makes; the last step of it dropped: see tests of sharding
              if (batches && (split || drop_last)) continue;
              count_each_sample(count,
                                {split         ? 12
                                 : count > 100 ? 16
                                               : 3,
                                 drop_last, even, split, skip, workers, from},
                                world);
            }
}

INSTANTIATE_TEST_SUITE_P(Loaders, EachSampleOnce,
                         ::testing::Combine(::testing::Values(From::indices, From::sampler, From::batch_sampler,
                                                              From::stream, From::dispatched_stream,
                                                              From::dispatched_indices),
                                            ::testing::Values(1, 2, 3, 4)));

TEST(BothApis, CountEachSampleOnceInAWholeEvaluation) {
  testing::as_ranks(3, [] {
    Accelerator accelerator;
    const auto numbers = [](int64_t i) { return i; };
    for (const int64_t count : {1, 7, 65, 1000}) {
      auto [even, batches, stream] = accelerator.prepare(
          DataLoader(numbers, count, {.batch_size = 4}), DataLoader(data::Function{numbers, count}, Varying(count)),
          DataLoader(Counting{count}, {.batch_size = 4, .dispatch_batches = true}));
      for (auto* loader : {&even, &batches, &stream}) {
        Indices seen;
        for (auto& batch : *loader) {
          const auto [all, objects] = accelerator.gather_for_metrics(batch, listed(batch));
          EXPECT_EQ(listed(all), objects);
          seen.insert(seen.end(), objects.begin(), objects.end());
        }
        Indices expected(count);
        for (int64_t i = 0; i < count; ++i) expected[i] = i;
        EXPECT_EQ(seen, expected);
      }
      auto uneven = accelerator.prepare(DataLoader(numbers, count, {.batch_size = 4, .even_batches = false}));
      auto collector = accelerator.collector<torch::Tensor>();
      accelerator.join_uneven_inputs([&] {
        for (auto& batch : uneven) collector.add(batch);
      });
      EXPECT_EQ(collector.gathered().numel(), count);
    }
  });
}

/// Says how often it was read.
struct Read {
  std::atomic<int>* reads;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<int64_t> next() { return ++*reads, at < 20 ? std::optional(at++) : std::nullopt; }
};

TEST(BothApis, StreamsAreDispatchedAndGeneratorsKeptInStepWhereAsked) {
  testing::as_ranks(2, [] {
    for (const bool wanted : {false, true}) {
      Accelerator accelerator({.dispatch_batches = wanted, .synced_generators = {.cpu = wanted}});
      std::atomic<int> reads = 0;
      std::atomic<int> looks = 0;
      auto [stream, mapped] = accelerator.prepare(DataLoader(Read{&reads}, {.batch_size = 2}),
                                                  DataLoader([&](int64_t i) { return ++looks, i; }, 6));
      int batches = 0;
      for (auto& batch : stream) batches += batch.numel() == 2;
      EXPECT_EQ(batches, 5);
      EXPECT_EQ(reads > 0, !wanted || accelerator.is_main_process());
      torch::manual_seed(100 + accelerator.process_index());
      torch::Tensor drawn;
      for (auto& batch : mapped)
        if (!drawn.defined()) drawn = torch::rand({4}) + 0 * batch;
      EXPECT_EQ(looks, !wanted ? 3 : accelerator.is_main_process() ? 6 : 0);
      const auto all = accelerator.gather(drawn).view({2, 4});
      EXPECT_EQ(torch::equal(all[0], all[1]), wanted);
    }
  });
}

TEST(BothApis, SkipsTheFirstBatchesOfOnePass) {
  testing::as_ranks(2, [] {
    Accelerator accelerator;
    auto loader = accelerator.prepare(DataLoader([](int64_t i) { return i; }, 16, {.batch_size = 2}));
    const auto first = [&] { return (*loader.begin())[0].item<int64_t>(); };
    for (auto& batch : accelerator.skip_first_batches(loader, 3))
      EXPECT_EQ(batch[0].item<int64_t>(), 12 + 2 * accelerator.process_index());
    EXPECT_EQ(first(), 2 * accelerator.process_index());
  });
}

}  // namespace
}  // namespace muster::runtime
