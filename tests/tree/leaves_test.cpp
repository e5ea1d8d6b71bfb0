#include <array>
#include <map>
#include <set>
#include <string>
#include <variant>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/tree/detail/visit.h"

namespace muster::tree {
namespace {

struct Boxes {
  at::Tensor image;
  std::vector<std::pair<std::string, int>> notes;
};
struct Output {
  at::Tensor loss;
  std::optional<at::Tensor> hidden;
};

std::string places(const auto& value) {
  std::string text;
  for (const auto& leaf : leaves_of(value)) text += leaf.path + (leaf.defined ? " " : "! ");
  return text;
}

TEST(Leaves, OnlyTypesThatCanHoldMoreOrFewerTensorsVary) {
  static_assert(!varies<at::Tensor> && !varies<int> && !varies<std::string> &&
                !varies<std::tuple<at::Tensor, std::pair<int, at::Tensor>>>);
  static_assert(!varies<std::array<at::Tensor, 3>> && !varies<std::vector<std::string>> && !varies<std::optional<int>>);
  static_assert(!varies<std::map<int, double>> && !varies<std::set<std::string>> && !varies<torch::data::Example<>> &&
                !varies<PerRank<at::Tensor>>);
  static_assert(varies<std::vector<at::Tensor>> && varies<std::map<std::string, at::Tensor>> &&
                varies<std::optional<at::Tensor>>);
  static_assert(varies<std::variant<int, at::Tensor>> && varies<Output> && varies<std::tuple<int, Output>> &&
                varies<PerRank<std::vector<at::Tensor>>>);
  static_assert(varies<std::array<std::vector<at::Tensor>, 2>> && varies<std::vector<Output>>);
}

TEST(Leaves, AreNamedFromTheOutsideIn) {
  const auto t = torch::ones({1});
  EXPECT_EQ(leaves_of(t).at(0).path, "");
  EXPECT_EQ(places(std::tuple(t, 3, std::vector{t, t})), "(0) (2)[0] (2)[1] ");
  EXPECT_EQ(places(std::map<std::string, Output>{{"a", {t, t}}, {"b", {at::Tensor(), {}}}}),
            "[\"a\"](0) [\"a\"](1) [\"b\"](0)! ");
  EXPECT_EQ(places(std::map<int, at::Tensor>{{7, t}}), "[7] ");
  EXPECT_EQ(places(std::variant<int, at::Tensor>(t)), "<1> ");
  EXPECT_EQ(places(Boxes{t, {{"x", 1}, {"y", 2}}}), "(0) ");  // what holds no tensor has no place, whatever its length
  EXPECT_EQ(places(std::tuple(per_rank(t), torch::data::Example<>(t, t))), "(0) (1)(0) (1)(1) ");
  const auto with_lists = leaves_of<true>(std::tuple(std::vector<std::string>{"x", "y"}, t));
  ASSERT_EQ(with_lists.size(), 2u);
  EXPECT_EQ(with_lists[0].path, "(0)");
}

TEST(Leaves, ComeInTheOrderOfVisiting) {
  const auto t = [](int i) { return torch::full({}, i); };
  auto value = std::tuple(t(0), std::map<std::string, std::vector<at::Tensor>>{{"b", {t(3)}}, {"a", {t(1), t(2)}}},
                          per_rank(t(4)));
  int64_t next = 0;
  tree::visit(value, [&](at::Tensor& tensor) { EXPECT_EQ(tensor.item<int64_t>(), next++); });
  EXPECT_EQ(static_cast<int64_t>(leaves_of(value).size()), next);
  EXPECT_EQ(leaves_of(value).back().path, "(2)");
}

}  // namespace
}  // namespace muster::tree
