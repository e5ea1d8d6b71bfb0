#include "runtime/profile.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "runtime/ranks.h"

namespace muster {
namespace {

void train_under_profile(const std::filesystem::path& path, bool operators) {
  Accelerator accelerator;
  torch::nn::Linear net(4, 1);
  std::vector<std::pair<torch::Tensor, torch::Tensor>> data(8, {torch::ones(4), torch::ones(1)});
  auto [model, optimizer, batches] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), DataLoader(data, {.batch_size = 2}));
  accelerator.profile(
      [&] {
        for (auto& [x, y] : batches) {
          accelerator.backward(torch::mse_loss(model(x), y));
          optimizer.step();
          optimizer.zero_grad();
        }
      },
      {.operators = operators, .path = path});
}

/// How often each name came, by rank.
std::map<int, std::map<std::string, int>> spans_in(const std::filesystem::path& path) {
  std::map<int, std::map<std::string, int>> counts;
  const auto trace = nlohmann::json::parse(std::ifstream(path));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_GE(event.at("ts").get<double>(), -1e6);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    ++counts[event.at("pid").get<int>()][event.at("name").get<std::string>()];
  }
  return counts;
}

TEST(Profile, ShowsEveryRankOnOneTimeLine) {
  const auto path = std::filesystem::temp_directory_path() / ("profile-" + std::to_string(getpid()) + ".json");
  setenv("PROFILE_TEST_PATH", path.c_str(), 0);  // the ranks run this test again and need the path of the first
  testing::as_ranks(2, [] { train_under_profile(std::getenv("PROFILE_TEST_PATH"), false); });
  const auto counts = spans_in(std::getenv("PROFILE_TEST_PATH"));
  ASSERT_EQ(counts.size(), 2u);
  for (const auto& [rank, names] : counts) {
    EXPECT_EQ(names.at("forward"), 2) << rank;
    EXPECT_EQ(names.at("backward"), 2) << rank;
    EXPECT_EQ(names.at("optimizer step"), 2) << rank;
    EXPECT_EQ(names.at("waiting for data"), 3) << rank;  // two batches and the end
    EXPECT_GE(names.at("all_reduce"), 2) << rank;
    EXPECT_FALSE(names.contains("aten::addmm"));
  }
  std::filesystem::remove(path);
}

TEST(Profile, ShowsOperatorsOnDemandAndNothingAfterwards) {
  const auto path =
      std::filesystem::temp_directory_path() / ("profile-operators-" + std::to_string(getpid()) + ".json");
  train_under_profile(path, true);
  auto counts = spans_in(path);
  EXPECT_EQ(counts[0]["aten::addmm"], 4);
  EXPECT_EQ(counts[0]["backward"], 4);
  train_under_profile(path, false);
  EXPECT_EQ(spans_in(path)[0].count("aten::addmm"), 0u);
  std::filesystem::remove(path);
}

TEST(Profile, WhatCannotBeWrittenIsSaid) {
  EXPECT_THROW(train_under_profile("/proc/nowhere/trace.json", false), std::exception);
}

}  // namespace
}  // namespace muster
