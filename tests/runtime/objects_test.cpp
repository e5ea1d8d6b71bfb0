#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/runtime/detail/values.h"
#include "muster/runtime/split.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"

namespace muster::runtime {
namespace {

enum class Colour { red, green };

struct Report {
  std::string name;
  std::map<std::string, std::vector<double>> scores;
  std::optional<Colour> colour;
  torch::Tensor weight;
  bool good = false;
};

Report report(int rank) {
  return {"rank " + std::to_string(rank),
          {{"loss", {1.0 * rank, 0.5}}},
          rank == 0 ? std::nullopt : std::optional(Colour::green),
          torch::full({rank, 2}, rank, torch::kHalf),
          rank > 0};
}

TEST(Objects, ComeBackAsTheyWere) {
  const auto copy = tree::unpack<Report>(tree::pack(report(2)));
  EXPECT_EQ(copy.name, "rank 2");
  EXPECT_EQ(copy.scores, report(2).scores);
  EXPECT_EQ(copy.colour, Colour::green);
  EXPECT_TRUE(torch::equal(copy.weight, report(2).weight));
  EXPECT_TRUE(copy.good);
  const std::tuple<std::map<int, bool>, std::vector<bool>, std::array<int, 2>, torch::Tensor> odd{
      {{3, true}}, {true, false}, {5, 6}, {}};
  const auto [map, bools, array, undefined] = tree::unpack<std::remove_const_t<decltype(odd)>>(tree::pack(odd));
  EXPECT_TRUE(map.at(3));
  EXPECT_EQ(bools, (std::vector<bool>{true, false}));
  EXPECT_EQ(array[1], 6);
  EXPECT_FALSE(undefined.defined());
}

TEST(Objects, OfAnotherTypeAreRefused) {
  EXPECT_EQ(testing::thrown_id([] { tree::unpack<int64_t>(tree::pack(std::string("a longer text"))); }), "MU111");
  EXPECT_EQ(testing::thrown_id([] { tree::unpack<std::string>(tree::pack(int64_t{1} << 60)); }), "MU111");
  EXPECT_EQ(testing::thrown_id([] {
              tree::unpack<torch::Tensor>(tree::pack(std::vector<int64_t>{9, 9, 9}));
            }),
            "MU111");
}

TEST(Objects, AreBroadcastAndGathered) {
  for (int world : {1, 3})
    testing::run_threads(world, 0, [world](const comm::Communicator& group) {
      EXPECT_EQ(broadcast_object(group, report(group.rank()), world - 1).name, "rank " + std::to_string(world - 1));
      const auto all = gather_object(group, report(group.rank()));
      ASSERT_EQ(std::ssize(all), world);
      for (int r = 0; r < world; ++r) EXPECT_EQ(all[r].weight.size(0), r);
      const std::vector<std::string> mine(group.rank() + 1, std::to_string(group.rank()));
      const auto joined = gather_object(group, mine);
      EXPECT_EQ(std::ssize(joined), world * (world + 1) / 2);
      EXPECT_EQ(joined.back(), std::to_string(world - 1));
    });
}

TEST(Split, AsTheReferenceDoes) {
  const auto cases =
      nlohmann::json::parse(std::ifstream(std::string(MUSTER_SOURCE_DIR) + "/tests/runtime/loop_cases.json"))
          .at("split_between_processes_cases");
  ASSERT_EQ(cases.size(), 24u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.dump());
    std::vector<int64_t> whole;
    for (int64_t i = 0; i < c.at("n").get<int64_t>(); ++i) whole.push_back(i);
    const int world = c.at("world_size");
    for (int rank = 0; rank < world; ++rank) {
      const SplitOptions options{.apply_padding = c.at("apply_padding")};
      const auto expected = c.at("ranks")[rank].get<std::vector<int64_t>>();
      EXPECT_EQ(split_between_processes(rank, world, whole, options), expected);
      const auto nested =
          split_between_processes(rank, world,
                                  std::map<std::string, std::tuple<torch::Tensor, std::vector<int64_t>>>{
                                      {"a", {torch::tensor(whole, torch::kLong), whole}}},
                                  options);
      const auto& [tensor, list] = nested.at("a");
      EXPECT_TRUE(torch::equal(tensor, torch::tensor(expected, torch::kLong)));
      EXPECT_EQ(list, expected);
    }
  }
}

/// A struct that lists only what travels to a device.
struct Named {
  torch::Tensor x;
  std::vector<std::string> names;
  friend auto tensors_of(Named& one) { return std::tie(one.x); }
};

TEST(Split, TakesEveryFieldOfAStructAlsoThoseThatTensorsOfLeavesOut) {
  const auto part = split_between_processes(1, 2, Named{torch::arange(4), {"a", "b", "c", "d"}}, {});
  EXPECT_EQ(part.names, (std::vector<std::string>{"c", "d"}));
  EXPECT_TRUE(torch::equal(part.x, torch::arange(2, 4)));
}

TEST(Split, OfUnequalListsIsRefused) {
  const std::tuple<std::vector<int>, torch::Tensor> unequal{{1, 2}, torch::ones({3})};
  for (int world : {1, 2})
    EXPECT_EQ(testing::thrown_id([&] { split_between_processes(0, world, unequal, {}); }), "MU184");
  EXPECT_TRUE(split_between_processes(1, 3, std::vector<int>(), {.apply_padding = true}).empty());
}

}  // namespace
}  // namespace muster::runtime
