#include "muster/data/dataset.h"

#include <concepts>
#include <iterator>
#include <ranges>
#include <thread>

#include <gtest/gtest.h>
#include <torch/data/datasets.h>
#include <torch/data/transforms.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "datasets.h"
#include "muster/testing/thrown.h"

namespace muster {
namespace {

namespace td = torch::data;
using at::Tensor;

struct Segment {
  Tensor image, mask;
  std::vector<Tensor> boxes;
};
struct Pixels : td::datasets::Dataset<Pixels> {
  td::Example<> get(size_t i) override {
    return {torch::full({2}, static_cast<double>(i)), torch::tensor(static_cast<int64_t>(i))};
  }
  std::optional<size_t> size() const override { return 10; }
};
struct Rows {
  int64_t size() const { return 10; }
  void get_batch(std::span<const int64_t> indices, td::Example<>& out) const {
    tree::ensure_tensor(out.data, {static_cast<int64_t>(indices.size()), 2}, at::kFloat);
    tree::ensure_tensor(out.target, {static_cast<int64_t>(indices.size())}, at::kLong);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      out.data[i].fill_(static_cast<double>(indices[i]));
      out.target[i].fill_(indices[i]);
    }
  }
};

using Mapped =
    decltype(std::declval<td::datasets::MNIST>().map(td::transforms::Normalize<>(0, 1)).map(td::transforms::Stack<>()));
using Normalized = decltype(std::declval<td::datasets::MNIST>().map(td::transforms::Normalize<>(0, 1)));
static_assert(std::same_as<batch_of_t<Mapped>, td::Example<>>);
static_assert(std::same_as<batch_of_t<Normalized>, td::Example<>>);
static_assert(std::same_as<batch_of_t<td::datasets::MNIST>, td::Example<>>);
static_assert(std::same_as<batch_of_t<td::datasets::MNIST&>, td::Example<>>);
static_assert(std::same_as<batch_of_t<td::datasets::TensorDataset>, td::Example<Tensor, void>>);
static_assert(std::same_as<batch_of_t<std::vector<td::Example<Tensor, int64_t>>>, td::Example<>>);
static_assert(std::same_as<batch_of_t<std::vector<std::tuple<Tensor, float>>>, std::tuple<Tensor, Tensor>>);
static_assert(std::same_as<batch_of_t<std::vector<Segment>>, Segment>);
static_assert(std::same_as<batch_of_t<const std::vector<int64_t>&>, Tensor>);
static_assert(std::same_as<batch_of_t<Rows>, td::Example<>>);
static_assert(std::same_as<batch_of_t<data::testing::Noisy>, std::tuple<Tensor, Tensor>>);
using Loader = DataLoader<td::Example<>>;
static_assert(std::ranges::input_range<Loader>);
static_assert(std::ranges::input_range<const Loader>);
static_assert(!std::copyable<Loader::iterator> && std::movable<Loader::iterator>);
static_assert(std::copyable<Loader>);
static_assert(is_data_loader<Loader> && !is_data_loader<int>);
// A stream without indices is no map-style dataset.
template <class D>
concept loadable = requires { typename batch_of_t<D>; };
static_assert(!loadable<int> && !loadable<Tensor>);

template <class L>
std::vector<double> firsts(const L& loader) {
  std::vector<double> all;
  for (auto& batch : loader)
    for (int64_t i = 0; i < batch.data.size(0); ++i)
      all.push_back(batch.data[i].reshape({-1})[0].template item<double>());
  return all;
}
const std::vector<double> kTen{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

TEST(Dataset, TorchDatasetsAreTaken) {
  Pixels pixels;
  for (const int workers : {0, 2}) {
    EXPECT_EQ(firsts(DataLoader(pixels, {.batch_size = 3, .workers = workers})), kTen);
    EXPECT_EQ(firsts(DataLoader(Pixels().map(td::transforms::Stack<>()), {.batch_size = 4, .workers = workers})), kTen);
    const auto halved = td::transforms::Normalize<>(0, 0.5);
    auto twice = kTen;
    for (auto& x : twice) x *= 2;
    EXPECT_EQ(firsts(DataLoader(Pixels().map(halved), {.batch_size = 4, .workers = workers})), twice);
  }
}

TEST(Dataset, WritesInPlace) {
  for (const int workers : {0, 1, 3})
    EXPECT_EQ(firsts(DataLoader(Rows(), {.batch_size = 4, .workers = workers})), kTen);
}

TEST(Dataset, StructsOfTensorsAreBatched) {
  std::vector<Segment> samples;
  for (int i = 0; i < 3; ++i)
    samples.push_back({torch::full({2, 2}, i), torch::full({2}, 10 + i), {torch::full({4}, i), torch::full({1}, i)}});
  DataLoader segments(samples, {.batch_size = 2});
  int64_t n = 0;
  for (auto& [image, mask, boxes] : segments) {
    EXPECT_EQ(image.size(0), mask.size(0));
    ASSERT_EQ(boxes.size(), 2u);
    EXPECT_EQ(boxes[0].sizes().vec(), (std::vector<int64_t>{image.size(0), 4}));
    n += image.size(0);
  }
  EXPECT_EQ(n, 3);
}

TEST(Dataset, FunctionsAreDatasets) {
  const DataLoader samples([](int64_t i) { return td::Example<Tensor, int64_t>(torch::full({2}, i), i); }, 10,
                           {.batch_size = 4});
  EXPECT_EQ(firsts(samples), kTen);
  const DataLoader batches(
      [](std::span<const int64_t> indices) {
        auto data = torch::empty({static_cast<int64_t>(indices.size()), 1});
        for (std::size_t i = 0; i < indices.size(); ++i) data[i] = static_cast<double>(indices[i]);
        return td::Example<>(data, data);
      },
      10, {.batch_size = 3, .workers = 1});
  EXPECT_EQ(firsts(batches), kTen);
  const DataLoader random([](int64_t i, SampleRandom& r) { return std::pair(i, r.uniform()); }, 10,
                          {.batch_size = 5, .seed = 1});
  std::vector<Tensor> first, second;
  for (auto& [i, u] : random) first.push_back(u);
  auto again = random;
  again.set_epoch(0);
  for (auto& [i, u] : again) second.push_back(u);
  ASSERT_EQ(first.size(), 2u);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(first[i].equal(second[i]));
}

TEST(Dataset, SharedPointersAreKept) {
  auto kept = std::make_shared<std::vector<int64_t>>(data::testing::numbers(5));
  DataLoader loader(kept, {.batch_size = 2});
  const std::weak_ptr<std::vector<int64_t>> alive = kept;
  kept.reset();
  EXPECT_FALSE(alive.expired());
  EXPECT_EQ(data::testing::run(loader).size(), 3u);
}

/// As LibTorch's own datasets are often written: a class of torch::data behind a holder.
struct HeldRowsImpl : td::datasets::Dataset<HeldRowsImpl> {
  explicit HeldRowsImpl(int64_t n)
      : rows(torch::arange(n).to(torch::kFloat).view({n, 1})), alive(std::make_shared<int>()) {}
  td::Example<> get(size_t i) override { return {rows[static_cast<int64_t>(i)], rows[static_cast<int64_t>(i)]}; }
  std::optional<size_t> size() const override { return rows.size(0); }
  Tensor rows;
  std::shared_ptr<int> alive;
};
TORCH_MODULE(HeldRows);

TEST(Dataset, NothingDanglesThatWasGivenByReference) {
  for (const int workers : {0, 2}) {
    const DataLoader contents(*HeldRows(10),
                              {.batch_size = 4, .workers = workers});  // the holder is gone after this line
    EXPECT_EQ(firsts(contents), kTen);
    const DataLoader holder(HeldRows(10), {.batch_size = 4, .workers = workers});
    EXPECT_EQ(firsts(holder), kTen);
    auto scoped = std::make_unique<Pixels>();
    const DataLoader copied(*scoped, {.batch_size = 4, .workers = workers});
    scoped.reset();
    EXPECT_EQ(firsts(copied), kTen);
  }
}

TEST(Dataset, HoldersAreSharedAndReferencesBorrowed) {
  HeldRows rows(10);
  const std::weak_ptr<int> alive = rows->alive;
  auto loader = std::make_unique<DataLoader<td::Example<>>>(rows, DataLoaderOptions{.batch_size = 4});
  rows->rows = rows->rows + 1;
  EXPECT_EQ(firsts(*loader).front(), 1);
  rows = nullptr;
  EXPECT_FALSE(alive.expired());
  loader.reset();
  EXPECT_TRUE(alive.expired());
  std::vector<int64_t> numbers = data::testing::numbers(4);
  const DataLoader borrowed(std::ref(numbers), {.batch_size = 4}), kept(numbers, {.batch_size = 4});
  numbers[0] = 7;
  EXPECT_EQ(data::testing::run(borrowed)[0][0], 7);
  EXPECT_EQ(data::testing::run(kept)[0][0], 0);
}

TEST(Dataset, WhatCannotBeKeptIsRefused) {
  using muster::testing::thrown_id;
  EXPECT_EQ(thrown_id([] { DataLoader(std::shared_ptr<Pixels>(), {.batch_size = 4}); }), "MU128");
  struct Brighter : Pixels {};
  Brighter brighter;
  Pixels& base = brighter;
  EXPECT_EQ(thrown_id([&] { DataLoader(base, {.batch_size = 4}); }), "MU128");
  EXPECT_EQ(firsts(DataLoader(std::ref(base), {.batch_size = 4})), kTen);
}

struct Copied {  // not const: each worker has a copy
  int64_t state = 0;
  int64_t size() const { return 20; }
  int64_t get(size_t i) { return state++, static_cast<int64_t>(i); }
};
struct Fixed : Copied {
  Fixed() = default;
  Fixed(const Fixed&) = delete;
};

TEST(Dataset, DatasetsThatChangeAreCopiedPerWorker) {
  Copied copied;
  EXPECT_EQ(data::testing::run(DataLoader(copied, {.batch_size = 20, .workers = 3})).front(),
            data::testing::numbers(20));
  EXPECT_EQ(copied.state, 0);
  Fixed fixed;
  const DataLoader alone(std::ref(fixed), {.batch_size = 20});
  EXPECT_EQ(data::testing::run(alone).front(), data::testing::numbers(20));
  try {
    data::testing::run(DataLoader(std::ref(fixed), {.workers = 1}));
    ADD_FAILURE() << "shared";
  } catch (const UsageError& e) {
    EXPECT_EQ(e.id(), "MU103");
  }
}

struct Endless : td::datasets::Dataset<Endless> {
  td::Example<> get(size_t) override { return {}; }
  std::optional<size_t> size() const override { return std::nullopt; }
};

TEST(Dataset, WithoutSizeIsRefused) {
  try {
    DataLoader loader((Endless()));
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& e) {
    EXPECT_EQ(e.id(), "MU104");
  }
}

TEST(Dataset, ReusedMemoryIsNeverSeen) {
  const auto all = data::testing::numbers(64);
  for (const int workers : {0, 2}) {
    const DataLoader loader(all, {.batch_size = 4, .workers = workers});
    std::vector<Tensor> held, views;
    int64_t n = 0;
    for (auto& batch : loader) {
      if (n % 3 == 0) held.push_back(batch);
      if (n % 3 == 1) views.push_back(batch.slice(0, 1, 3));
      if (n++ % 3 == 2) batch = batch + 1;  // the user's own tensor in our place
    }
    for (std::size_t i = 0; i < held.size(); ++i) EXPECT_EQ(held[i][0].item<int64_t>(), static_cast<int64_t>(i) * 12);
    for (std::size_t i = 0; i < views.size(); ++i)
      EXPECT_EQ(views[i][0].item<int64_t>(), static_cast<int64_t>(i) * 12 + 5);
  }
}

TEST(Dataset, MemoryOfBatchesIsReused) {
  const auto all = data::testing::numbers(64);
  const DataLoader loader(all, {.batch_size = 4});
  std::set<const void*> places;
  for (auto& batch : loader) places.insert(batch.const_data_ptr());
  EXPECT_EQ(places.size(), 1u);
}

}  // namespace
}  // namespace muster
