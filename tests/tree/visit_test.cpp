#include "muster/tree/detail/visit.h"

#include <array>
#include <map>
#include <unordered_map>

#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/types.h>

namespace muster::tree {
namespace {

using at::Tensor;

Tensor of(int64_t n) { return torch::ones({n}); }

template <class T>
std::vector<int64_t> sizes(T&& value) {
  std::vector<int64_t> all;
  visit(value, [&](const Tensor& t) { all.push_back(t.defined() ? t.numel() : -1); });
  return all;
}
using Sizes = std::vector<int64_t>;

struct Sample {
  Tensor image, mask;
  std::vector<Tensor> boxes;
  int64_t id = 0;
  std::string name;
  std::optional<Tensor> weight;
};
struct Eight {
  Tensor a, b, c, d, e, f, g, h;
};
struct One {
  Tensor a;
};
struct Nested {
  Sample sample;
  std::pair<Tensor, One> pair;
  std::array<Tensor, 2> both;
};
class Hooked {
 public:
  explicit Hooked(Tensor t) : t_(std::move(t)) {}
  friend auto tensors_of(Hooked& o) { return std::tie(o.t_); }

 private:
  Tensor t_;
};
enum class Kind { a };

static_assert(field_count<Sample> == 6 && field_count<Eight> == 8 && field_count<One> == 1 && field_count<Nested> == 3);

TEST(Visit, SeesTensorsInDeclarationOrder) {
  EXPECT_EQ(sizes(of(3)), Sizes({3}));
  EXPECT_EQ(sizes(std::tuple(of(1), 5, of(2), Kind::a, "text", std::string("x"))), Sizes({1, 2}));
  EXPECT_EQ(sizes(std::vector{of(1), Tensor()}), Sizes({1, -1}));
  EXPECT_EQ(sizes(std::map<std::string, std::tuple<Tensor, int>>{{"b", {of(2), 1}}, {"a", {of(1), 2}}}), Sizes({1, 2}));
  EXPECT_EQ(sizes(std::unordered_map<int, Tensor>{{1, of(4)}}), Sizes({4}));
  EXPECT_EQ(sizes(std::optional<Tensor>()), Sizes());
  EXPECT_EQ(sizes(std::optional(of(2))), Sizes({2}));
  EXPECT_EQ(sizes(std::variant<int, Tensor>(of(2))), Sizes({2}));
  EXPECT_EQ(sizes(torch::data::Example<>(of(1), of(2))), Sizes({1, 2}));
  EXPECT_EQ(sizes(torch::data::Example<Tensor, void>(of(1))), Sizes({1}));
  EXPECT_EQ(sizes(torch::data::Example<Tensor, int64_t>(of(1), 2)), Sizes({1}));
}

TEST(Visit, SeesUndeclaredStructs) {
  EXPECT_EQ(sizes(Sample{of(1), of(2), {of(3), of(4)}, 7, "n", of(5)}), Sizes({1, 2, 3, 4, 5}));
  EXPECT_EQ(sizes(Eight{of(1), of(2), of(3), of(4), of(5), of(6), of(7), of(8)}), Sizes({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(sizes(Nested{{of(1), of(2), {}, 0, "", {}}, {of(3), {of(4)}}, {of(5), of(6)}}), Sizes({1, 2, 3, 4, 5, 6}));
}

TEST(Visit, SeesClassesThatListTheirTensors) {
  EXPECT_EQ(sizes(Hooked(of(5))), Sizes({5}));
  const Hooked fixed(of(6));
  EXPECT_EQ(sizes(fixed), Sizes({6}));
}

TEST(Visit, WritesInPlaceAndReadsConst) {
  Sample sample{of(1), of(2), {of(3)}, 7, "n", of(5)};
  visit(sample, [](Tensor& t) { t = t * 2; });
  EXPECT_EQ(sample.boxes[0].sum().item<float>(), 6);
  const Sample& fixed = sample;
  visit(fixed, [](auto& t) { static_assert(std::same_as<decltype(t), const Tensor&>); });
  const auto tripled = transform(fixed, [](const Tensor& t) { return t * 3; });
  EXPECT_EQ(tripled.weight->sum().item<float>(), 30);
  EXPECT_EQ(tripled.id, 7);
  EXPECT_EQ(sample.weight->sum().item<float>(), 10);
}

TEST(Move, TakesEveryTensorToTheDevice) {
  const auto moved_tensors = to(std::tuple(of(2), std::vector{of(3), Tensor()}), at::Device(at::kMeta));
  EXPECT_TRUE(std::get<0>(moved_tensors).is_meta());
  EXPECT_TRUE(std::get<1>(moved_tensors)[0].is_meta());
  EXPECT_FALSE(std::get<1>(moved_tensors)[1].defined());
  const auto t = of(2);
  EXPECT_TRUE(moved(t, at::kCPU).is_same(t));
}

}  // namespace
}  // namespace muster::tree
