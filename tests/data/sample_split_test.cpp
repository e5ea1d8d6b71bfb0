#include <algorithm>
#include <fstream>
#include <memory>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "datasets.h"

namespace muster::data::testing {
namespace {

using json = nlohmann::json;

const std::vector<json>& cases(const std::string& list) {
  static const json all =
      json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/data/sharding_cases.json"));
  static std::map<std::string, std::vector<json>> lists;
  auto& found = lists[list];
  if (found.empty()) found = all.at(list).get<std::vector<json>>();
  return found;
}

struct Part {
  Batches batches;
  std::vector<int64_t> local_real, real;
};

Part run_part(DataLoader<at::Tensor> loader) {
  Part part;
  for (auto& batch : loader) {
    part.batches.push_back(list(batch));
    part.local_real.push_back(loader.local_real_samples());
    part.real.push_back(loader.real_samples());
    EXPECT_EQ(loader.local_samples(), batch.size(0));
    EXPECT_EQ(loader.end_of_dataloader(), loader.num_yielded() == loader.size());
  }
  EXPECT_EQ(static_cast<int64_t>(part.batches.size()), loader.size());
  return part;
}

DataLoaderOptions options_of(const json& c) {
  return {.batch_size = c.at("batch_size"),
          .drop_last = c.at("drop_last"),
          .even_batches = c.at("even_batches"),
          .split_batches = c.at("split_batches")};
}

/// What gathering a step over all ranks gives once padding is cut off.
void expect_gathered(const json& c, const std::vector<Part>& parts) {
  if (c.at("gathered_for_metrics").is_null()) return;
  Batches gathered;
  for (std::size_t step = 0; step < parts.front().batches.size(); ++step) {
    gathered.emplace_back();
    for (const auto& part : parts)
      gathered.back().insert(gathered.back().end(), part.batches[step].begin(), part.batches[step].end());
    int64_t local_real = 0;
    for (const auto& part : parts) local_real += part.local_real[step];
    EXPECT_EQ(local_real, parts.front().real[step]);
    ASSERT_LE(parts.front().real[step], static_cast<int64_t>(gathered.back().size()));
    gathered.back().resize(parts.front().real[step]);
  }
  EXPECT_EQ(gathered, c.at("gathered_for_metrics").get<Batches>());
}

class SplitCase : public ::testing::TestWithParam<int> {};

TEST_P(SplitCase, IsDealtAsTheReferenceDoes) {
  const auto& c = cases("cases")[GetParam()];
  SCOPED_TRACE(c.dump());
  const int world = c.at("world_size");
  const auto data = numbers(c.at("dataset_len"));
  const DataLoader whole(data, options_of(c));
  const DataLoader sampled(data, SequentialSampler(static_cast<int64_t>(data.size())), options_of(c));
  std::vector<Part> parts;
  for (int rank = 0; rank < world; ++rank) {
    const SampleSplit split{.rank = rank, .world_size = world};
    auto loader = whole.distributed(split);
    const auto expected = c.at("ranks")[rank].get<Batches>();
    parts.push_back(run_part(loader));
    EXPECT_EQ(parts.back().batches, expected) << "rank " << rank;
    EXPECT_EQ(run(sampled.distributed(split)), expected) << "through a sampler, rank " << rank;
    // The reference's length counts a last piece that ranks without one never get.
    const bool over_reports = c.at("split_batches") && !c.at("even_batches") && !c.at("drop_last");
    if (!over_reports) {
      EXPECT_EQ(loader.size(), c.at("len_reported")[rank].get<int64_t>());
    }
    if (!c.at("remainder").is_null()) {
      EXPECT_EQ(loader.remainder(), c.at("remainder").get<int64_t>());
    }
  }
  expect_gathered(c, parts);
}

INSTANTIATE_TEST_SUITE_P(Vectors, SplitCase, ::testing::Range(0, static_cast<int>(cases("cases").size())));

class InvalidCase : public ::testing::TestWithParam<int> {};

TEST_P(InvalidCase, IsRefused) {
  const auto& c = cases("invalid_cases")[GetParam()];
  SCOPED_TRACE(c.dump());
  const auto data = numbers(c.at("dataset_len"));
  const DataLoader whole(data, options_of(c));
  for (int rank = 0; rank < c.at("world_size").get<int>(); ++rank) {
    try {
      (void)whole.distributed({.rank = rank, .world_size = c.at("world_size")});
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& e) {
      EXPECT_EQ(e.id(), "MU107");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, InvalidCase, ::testing::Range(0, static_cast<int>(cases("invalid_cases").size())));

class ListedBatches : public BatchSampler {
 public:
  explicit ListedBatches(Batches batches) : batches_(std::move(batches)) {}
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }
  void start(int64_t) override { at_ = 0; }
  std::vector<int64_t> next() override { return batches_.at(at_++); }

 private:
  std::size_t at_ = 0;
  Batches batches_;
};

class DynamicCase : public ::testing::TestWithParam<int> {};

TEST_P(DynamicCase, IsDealtAsTheReferenceDoes) {
  const auto& c = cases("dynamic_batch_cases")[GetParam()];
  SCOPED_TRACE(c.dump());
  const int world = c.at("world_size");
  const auto listed = c.at("sampler_batches").get<Batches>();
  const auto data = numbers(14);
  for (int rank = 0; rank < world; ++rank) {
    const DataLoaderOptions options{.drop_last = c.at("drop_last"), .even_batches = c.at("even_batches")};
    const auto loader =
        DataLoader(data, ListedBatches(listed), options).distributed({.rank = rank, .world_size = world});
    const auto expected = c.at("ranks")[rank].get<Batches>();
    EXPECT_EQ(run(loader), expected) << "rank " << rank;
    EXPECT_EQ(loader.size(), c.at("len_reported")[rank].get<int64_t>());
    for (int64_t from = 0; from <= loader.size(); ++from) {
      auto resumed = loader;
      resumed.seek(from);
      EXPECT_EQ(run(resumed), Batches(expected.begin() + from, expected.end())) << "from " << from;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, DynamicCase,
                         ::testing::Range(0, static_cast<int>(cases("dynamic_batch_cases").size())));

TEST(SampleSplit, VectorsAreAllThere) {
  EXPECT_EQ(cases("cases").size(), 600u);
  EXPECT_EQ(cases("invalid_cases").size(), 54u);
  EXPECT_EQ(cases("dynamic_batch_cases").size(), 24u);
}

TEST(SampleSplit, BatchSamplersCannotBeSplit) {
  const auto data = numbers(4);
  const DataLoader whole(data, ListedBatches({{0, 1}, {2}}));
  EXPECT_THROW((void)whole.distributed({.split_batches = true, .world_size = 2}), ConfigError);
}

TEST(SampleSplit, ARankOutsideTheWorldIsRefused) {
  const auto data = numbers(4);
  EXPECT_THROW((void)DataLoader(data).distributed({.rank = 2, .world_size = 2}), ConfigError);
}

TEST(SampleSplit, RealSamplesOfBatchSamplersLeaveOutPadding) {
  const auto data = numbers(6);
  for (int rank = 0; rank < 2; ++rank) {
    auto loader =
        DataLoader(data, ListedBatches({{0, 1, 2}, {3, 4}, {5}})).distributed({.rank = rank, .world_size = 2});
    std::vector<int64_t> local, local_real, real;
    for (auto& batch : loader) {
      local.push_back((void(batch), loader.local_samples()));
      local_real.push_back(loader.local_real_samples());
      real.push_back(loader.real_samples());
    }
    EXPECT_EQ(real, (std::vector<int64_t>{5, 1}));
    EXPECT_EQ(local, rank == 0 ? (std::vector<int64_t>{3, 1}) : (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(local_real, rank == 0 ? (std::vector<int64_t>{3, 1}) : (std::vector<int64_t>{2, 0}));
  }
}

}  // namespace
}  // namespace muster::data::testing
