#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "data/worker_queue.h"
#include "streams.h"

namespace muster::data {
namespace {

/// Draws with LibTorch's operators and no generator.
struct Careless {
  int64_t n = 0;
  int64_t size() const { return n; }
  at::Tensor get(size_t i) const {
    return torch::cat(
        {torch::full({1}, static_cast<double>(i)), torch::rand({2}), torch::dropout(torch::ones({4}), 0.5, true)});
  }
};

struct CarelessBatches {
  int64_t n = 0;
  int64_t size() const { return n; }
  at::Tensor get_batch(Indices indices) const { return torch::randn({static_cast<int64_t>(indices.size()), 2}); }
};

struct CarelessStream {
  int64_t n = 0;
  int64_t at = 0;
  void start(int64_t) { at = 0; }
  std::optional<at::Tensor> next() { return at++ < n ? std::optional(torch::rand({2})) : std::nullopt; }
  at::Tensor transform(const at::Tensor& raw) const { return torch::cat({raw, torch::rand({2})}); }
};

template <class D>
at::Tensor everything(const D& dataset, int workers, int rank = 0, int world = 1, bool rank_in_sample_seed = false) {
  std::vector<at::Tensor> all;
  const DataLoaderOptions options{
      .batch_size = 4, .rank_in_sample_seed = rank_in_sample_seed, .seed = 3, .workers = workers};
  for (auto& batch : DataLoader(D(dataset), options).distributed({.rank = rank, .world_size = world}))
    all.push_back(batch.clone());
  return torch::cat(all);
}

template <class D>
class OperatorRandom : public ::testing::Test {};
using Datasets = ::testing::Types<Careless, CarelessBatches, CarelessStream>;
TYPED_TEST_SUITE(OperatorRandom, Datasets);

TYPED_TEST(OperatorRandom, DependsOnNeitherWorkersNorMovesTheDefaultGenerator) {
  torch::manual_seed(1);
  const auto before = at::detail::getDefaultCPUGenerator().get_state();
  const TypeParam dataset{40};
  const auto expected = everything(dataset, 0);
  for (const int workers : {1, 3}) {
    at::Tensor drawn_meanwhile = torch::rand({0});
    EXPECT_TRUE(everything(dataset, workers).equal(expected)) << workers << " workers";
  }
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(before));
}

TEST(OperatorRandom, TheTrainingThreadKeepsItsOwnStream) {
  auto train = [](int workers) {
    torch::manual_seed(1);
    std::vector<at::Tensor> drawn;
    for (auto& batch : DataLoader(Careless{40}, {.batch_size = 4, .seed = 3, .workers = workers})) {
      (void)batch;
      drawn.push_back(torch::rand({3}));
    }
    return torch::stack(drawn);
  };
  torch::manual_seed(1);
  std::vector<at::Tensor> alone;
  for (int i = 0; i < 10; ++i) alone.push_back(torch::rand({3}));
  for (const int workers : {0, 3}) EXPECT_TRUE(train(workers).equal(torch::stack(alone))) << workers << " workers";
}

TEST(OperatorRandom, BelongsToTheSampleWhicheverRankMakesIt) {
  const Careless dataset{16};
  const auto whole = everything(dataset, 0);
  const auto ranks = torch::cat({everything(dataset, 0, 0, 2), everything(dataset, 2, 1, 2)});
  EXPECT_TRUE(ranks.index_select(0, ranks.select(1, 0).argsort()).equal(whole));
  EXPECT_FALSE(whole[0].slice(0, 1).equal(whole[1].slice(0, 1)));
}

TEST(OperatorRandom, MayDifferFromRankToRankOnRequest) {
  const Careless one{1};  // both ranks get the same sample
  EXPECT_TRUE(everything(one, 0, 0, 2).equal(everything(one, 0, 1, 2)));
  EXPECT_FALSE(everything(one, 0, 0, 2, true).equal(everything(one, 0, 1, 2, true)));
}

}  // namespace
}  // namespace muster::data
