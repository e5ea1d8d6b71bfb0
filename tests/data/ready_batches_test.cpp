#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "data/batch_order.h"
#include "datasets.h"
#include "muster/data/sample_split.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

/// Batches of different sizes; all numbers differ.
std::vector<at::Tensor> five() {
  return {torch::tensor({0, 1}), torch::tensor({2}), torch::tensor({3, 4, 5}), torch::tensor({6}),
          torch::tensor({7, 8})};
}

DataLoader<at::Tensor> of(const DataLoader<at::Tensor>& whole, int rank, int world) {
  return whole.distributed({.rank = rank, .world_size = world});
}

using Lists = data::testing::Batches;

TEST(ReadyBatches, AreReturnedAsTheyAre) {
  const auto list = five();
  const DataLoader loader{from_batches(list)};
  static_assert(std::same_as<decltype(loader), const DataLoader<at::Tensor>>);
  EXPECT_EQ(data::testing::run(loader), (Lists{{0, 1}, {2}, {3, 4, 5}, {6}, {7, 8}}));
  size_t i = 0;
  for (auto& batch : loader) EXPECT_TRUE(batch.is_same(list[i++]));
  EXPECT_EQ(loader.size(), 5);
  EXPECT_EQ(loader.dataset_size(), 9);
}

TEST(ReadyBatches, AreDistributedInTurnAndRepeatedFromTheStart) {
  const DataLoader whole{from_batches(five())};
  EXPECT_EQ(data::testing::run(of(whole, 0, 2)), (Lists{{0, 1}, {3, 4, 5}, {7, 8}}));
  EXPECT_EQ(data::testing::run(of(whole, 1, 2)), (Lists{{2}, {6}, {0, 1}}));
  const DataLoader uneven(from_batches(five()), {.even_batches = false});
  EXPECT_EQ(data::testing::run(of(uneven, 1, 2)), (Lists{{2}, {6}}));
  const DataLoader dropped(from_batches(five()), {.drop_last = true});
  EXPECT_EQ(data::testing::run(of(dropped, 0, 2)), (Lists{{0, 1}, {3, 4, 5}}));
}

TEST(ReadyBatches, CountTheSamplesOfTheirFirstTensor) {
  const DataLoader whole{from_batches(five())};
  auto loader = of(whole, 1, 2);
  std::vector<std::tuple<int64_t, int64_t, int64_t>> counts;
  for (auto& batch : loader) {
    (void)batch;
    counts.emplace_back(loader.local_samples(), loader.local_real_samples(), loader.real_samples());
  }
  EXPECT_EQ(counts, (std::vector<std::tuple<int64_t, int64_t, int64_t>>{{1, 1, 3}, {1, 1, 4}, {2, 0, 2}}));
}

TEST(ReadyBatches, AreShuffledBySeedAndEpochAlone) {
  const auto seen = [](const DataLoader<at::Tensor>& loader) {
    std::vector<std::vector<int64_t>> all;
    for (const auto& batch : data::testing::run(loader)) all.push_back(batch);
    return all;
  };
  DataLoader whole(from_batches(five()), {.seed = 3, .shuffle = true});
  const auto first = seen(whole), second = seen(whole);
  const auto listed = data::testing::run(DataLoader{from_batches(five())});
  const std::set<std::vector<int64_t>> every(listed.begin(), listed.end());
  EXPECT_EQ(std::set(first.begin(), first.end()), every);
  EXPECT_EQ(std::set(second.begin(), second.end()), every);
  EXPECT_NE(first, second);
  whole.set_epoch(0);
  EXPECT_EQ(data::testing::run(of(whole, 1, 2)), (Lists{first[1], first[3], first[0]}));
  const DataLoader with_workers(from_batches(five()), {.seed = 3, .shuffle = true, .workers = 2});
  EXPECT_EQ(seen(with_workers), first);
}

TEST(ReadyBatches, ResumeAfterTheCurrentBatchWithAnotherWorldSize) {
  const DataLoader whole(from_batches(five()), {.seed = 5, .shuffle = true});
  const auto all = data::testing::run(of(whole, 0, 1));
  auto loader = of(whole, 0, 2);
  LoaderPosition saved;
  for (auto& batch : loader) {
    (void)batch;
    saved = loader.save_position();
    break;
  }
  EXPECT_EQ(saved.samples, 2);  // batches, of both ranks
  auto resumed = of(whole, 0, 1);
  resumed.load_position(saved);
  EXPECT_EQ(data::testing::run(resumed), (Lists{all.begin() + 2, all.end()}));
}

struct Labelled {
  std::vector<std::string> names;
  at::Tensor rows;
};

TEST(ReadyBatches, MayBeTuplesStructsAndLists) {
  std::vector<Labelled> structs;
  structs.push_back({{"a", "b"}, torch::ones({2, 3})});
  structs.push_back({{"c"}, torch::ones({1, 3})});
  const DataLoader loader(from_batches(std::move(structs)), {.workers = 1});
  std::string names;
  for (auto& [own, rows] : loader)
    for (auto& name : own) names += name;
  EXPECT_EQ(names, "abc");
  EXPECT_EQ(loader.dataset_size(), 3);
  const std::vector<std::vector<at::Tensor>> lists{{torch::ones(4), torch::ones(2)}};
  EXPECT_EQ(DataLoader{from_batches(lists)}.dataset_size(), 4);
  const std::vector<std::tuple<at::Tensor, at::Tensor>> pairs{{at::Tensor(), torch::ones(2)}};
  EXPECT_EQ(DataLoader{from_batches(pairs)}.dataset_size(), 2);
  EXPECT_EQ(DataLoader{from_batches(std::vector<torch::data::Example<>>())}.size(), 0);
}

TEST(ReadyBatches, RefuseOptionsThatWouldCutThem) {
  const auto id = [](DataLoaderOptions options) {
    return testing::thrown_id([&] { of(DataLoader(from_batches(five()), options), 0, 2); });
  };
  EXPECT_EQ(id({.batch_size = 4}), "MU107");
  EXPECT_EQ(id({.dispatch_batches = true}), "MU107");
  EXPECT_EQ(id({.split_batches = true}), "MU107");
  EXPECT_EQ(testing::thrown_id([] { DataLoader(from_batches(five()), SequentialSampler(5)); }), "MU107");
  EXPECT_EQ(testing::thrown_id([] {
              DataLoader{from_batches(std::vector{torch::ones(2), torch::ones({0, 2})})};
            }),
            "MU323");
}

TEST(ReadyBatches, AnEmptyLoaderSaysSo) {
  DataLoader<at::Tensor> loader;
  EXPECT_FALSE(loader);
  EXPECT_EQ(testing::thrown_id([&] { loader.begin(); }), "MU322");
  EXPECT_EQ(testing::thrown_id([&] { loader.set_epoch(1); }), "MU322");
  loader = DataLoader{from_batches(five())};
  EXPECT_TRUE(loader);
  int64_t count = 0;
  for (auto& batch : *loader) count += batch.numel();  // as with LibTorch's loaders
  EXPECT_EQ(count, loader->dataset_size());
}

}  // namespace
}  // namespace muster
