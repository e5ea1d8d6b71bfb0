#include "muster/runtime/metrics.h"

#include "muster/data/loader.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace muster::runtime {
namespace {

using Indices = std::vector<int64_t>;

Indices listed(const torch::Tensor& tensor) {
  const auto whole = tensor.contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}


StepRows rows_of(const DataLoader<torch::Tensor>& loader, bool equal) {
  const auto samples = loader.state()->samples();
  return {.equal = equal, .local = samples.local, .local_real = samples.local_real, .real = samples.real};
}

struct Loading {
  int64_t batch_size;
  bool drop_last, even, split;
  int64_t skip;
};

std::string name_of(const Loading& l) {
  return "batch " + std::to_string(l.batch_size) + (l.drop_last ? ", drop_last" : "") + (l.even ? ", even" : ", uneven") +
         (l.split ? ", split" : "") + ", skip " + std::to_string(l.skip);
}

DataLoader<torch::Tensor> loader_of(int64_t count, const Loading& how, const dist::Communicator& group) {
  const DataLoader whole([](int64_t i) { return i; }, count,
                         {.batch_size = how.batch_size, .drop_last = how.drop_last, .even_batches = how.even, .split_batches = how.split});
  auto loader = whole.distributed({.rank = group.rank(), .world_size = group.size()});
  if (how.skip <= loader.size()) loader.seek(how.skip);
  return loader;
}

/// What must have been counted: all, but for what was skipped or dropped.
Indices expected_of(int64_t count, const Loading& how, int world, bool skipped) {
  const int64_t step = how.batch_size * (how.split ? 1 : world);
  const int64_t end = how.drop_last ? count / step * step : count;
  Indices expected;
  for (int64_t i = skipped ? std::min(end, how.skip * step) : 0; i < end; ++i) expected.push_back(i);
  return expected;
}

void count_each_sample(int64_t count, const Loading& how, int world) {
  SCOPED_TRACE(::testing::Message() << count << " samples, " << world << " ranks, " << name_of(how));
  testing::run_threads(world, 0, [&](const dist::Communicator& group) {
    auto loader = loader_of(count, how, group);
    const bool equal = how.even || how.drop_last || world == 1;
    const auto sizes = group.all_gather(torch::tensor(loader.size()));
    const int64_t fewest = sizes.min().item<int64_t>(), most = sizes.max().item<int64_t>();
    const bool skipped = how.skip <= fewest;
    if (!skipped) loader.seek(0);
    std::optional<StepRows> step;
    MetricsCollector<torch::Tensor, std::vector<std::string>> collector(group, [&] { return step; });
    Indices gathered;
    for (auto& batch : loader) {
      step = rows_of(loader, equal);
      std::vector<std::string> names;
      for (const auto i : listed(batch)) names.push_back(std::to_string(i));
      collector.add(batch, names);
      if (fewest != most) continue;   // ranks would not meet
      const auto [all, same] = gather_for_metrics(group, step, batch, names);
      const auto list = listed(all);
      gathered.insert(gathered.end(), list.begin(), list.end());
      ASSERT_EQ(same.size(), list.size());
      for (size_t i = 0; i < list.size(); ++i) ASSERT_EQ(same[i], std::to_string(list[i]));
    }
    const auto expected = expected_of(count, how, world, skipped);
    const auto [all, names] = collector.gathered();
    EXPECT_EQ(all.defined() ? listed(all) : Indices(), expected);
    EXPECT_EQ(names.size(), expected.size());
    if (fewest == most) EXPECT_EQ(gathered, expected);
  });
}

class EachSampleOnce : public ::testing::TestWithParam<int> {};

TEST_P(EachSampleOnce, InOrderInEveryConfiguration) {
  for (const int64_t count : {1, 7, 64, 65, 1000})
    for (const bool drop_last : {false, true})
      for (const bool even : {false, true})
        for (const bool split : {false, true})
          for (const int64_t skip : {0, 1}) count_each_sample(count, {split ? 12 : count > 100 ? 16 : 3, drop_last, even, split, skip}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, EachSampleOnce, ::testing::Values(1, 2, 3, 4));

TEST(GatherForMetrics, LeavesWhatIsNotPerSample) {
  testing::run_threads(2, 0, [](const dist::Communicator& group) {
    const std::optional<StepRows> last(StepRows{.equal = true, .local = 3, .local_real = group.rank() == 0 ? 3 : 1, .real = 4});
    struct Result {
      torch::Tensor guess, loss;
      std::vector<std::string> names;
      int64_t number;
    };
    const Result mine{torch::full({3, 2}, group.rank()), torch::tensor(1.5 * group.rank()), {"a", "b", "c"}, group.rank()};
    const auto all = gather_for_metrics(group, last, mine);
    EXPECT_EQ(all.guess.sizes(), (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(all.loss.sizes(), (std::vector<int64_t>{2}));   // one per rank, also in the last step
    EXPECT_EQ(all.names, (std::vector<std::string>{"a", "b", "c", "a"}));
    EXPECT_EQ(all.number, group.rank());
    const auto map = gather_for_metrics(group, last, std::map<std::string, torch::Tensor>{{"x", torch::ones({3})}});
    EXPECT_EQ(map.at("x").size(0), 4);
    EXPECT_EQ(gather_for_metrics(group, std::nullopt, torch::ones({3})).size(0), 6);   // no loader in use
  });
}

TEST(GatherForMetrics, ATensorWithoutDimensionsHasOneInEveryWorld) {
  for (int world : {1, 3})
    testing::run_threads(world, 0, [world](const dist::Communicator& group) {
      EXPECT_EQ(gather_for_metrics(group, std::nullopt, torch::tensor(2)).sizes(), (std::vector<int64_t>{world}));
    });
}

TEST(Collector, OfNestedValuesAndNothing) {
  testing::run_threads(2, 0, [](const dist::Communicator& group) {
    using Pair = std::map<std::string, torch::Tensor>;
    MetricsCollector<Pair> collector(group, [] { return std::nullopt; });
    EXPECT_TRUE(collector.gathered().empty());
    if (group.rank() == 1) collector.add(Pair{{"a", torch::ones({2})}, {"b", torch::tensor(7)}});
    collector.add(Pair{{"a", torch::zeros({1})}, {"b", torch::tensor(8)}});
    const auto all = collector.gathered();
    EXPECT_TRUE(torch::equal(all.at("a"), torch::tensor({0.f, 1.f, 1.f, 0.f})));
    EXPECT_TRUE(torch::equal(all.at("b"), torch::tensor({8, 7, 8})));
  });
}

}  // namespace
}  // namespace muster::runtime
