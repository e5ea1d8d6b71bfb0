#include "muster/tree/detail/pack.h"

#include <array>
#include <map>
#include <optional>
#include <variant>

#include <gtest/gtest.h>
#include <torch/data/example.h>
#include <torch/types.h>

#include "muster/base/error.h"

namespace muster::tree {
namespace {

enum class Medium : uint8_t { image, text };

struct Inner {
  at::Tensor boxes;
  std::vector<std::string> names;
};

struct Everything {
  std::map<std::string, at::Tensor> by_name;
  torch::data::Example<> example;
  std::optional<Inner> inner;
  Medium kind = Medium::image;
  std::vector<std::pair<int64_t, double>> numbers;
  std::array<at::Tensor, 2> pair;
  std::variant<std::monostate, at::Tensor, std::string> one_of;
  std::tuple<bool, at::Tensor> some;
};

class Listed {
 public:
  explicit Listed(at::Tensor t = {}, int64_t n = 0) : n_(n), t_(std::move(t)) {}
  friend auto tensors_of(Listed& l) { return std::tie(l.t_, l.n_); }
  int64_t n() const { return n_; }
  const at::Tensor& t() const { return t_; }

 private:
  int64_t n_;
  at::Tensor t_;
};

TEST(Pack, GivesBackWhatItTook) {
  const Everything value{.by_name = {{"a", torch::arange(5)}, {"b", torch::ones({2, 0})}},
                         .example = {torch::rand({3, 4}), torch::tensor(7)},
                         .inner = Inner{torch::rand({2, 2}).to(torch::kBFloat16), {"x", "", "yz"}},
                         .kind = Medium::text,
                         .numbers = {{1, 0.5}, {-2, 1e300}},
                         .pair = {torch::arange(6).view({2, 3}).t(), at::Tensor()},
                         .one_of = std::string("text"),
                         .some = {true, torch::tensor({true, false})}};
  const auto packed = pack(value);
  const auto back = unpack<Everything>(packed);
  EXPECT_EQ(back.by_name.size(), 2u);
  EXPECT_TRUE(back.by_name.at("a").equal(value.by_name.at("a")));
  EXPECT_EQ(back.by_name.at("b").sizes(), at::IntArrayRef({2, 0}));
  EXPECT_TRUE(back.example.data.equal(value.example.data));
  EXPECT_TRUE(back.example.target.equal(value.example.target));
  ASSERT_TRUE(back.inner);
  EXPECT_TRUE(back.inner->boxes.equal(value.inner->boxes));
  EXPECT_EQ(back.inner->names, value.inner->names);
  EXPECT_EQ(back.kind, Medium::text);
  EXPECT_EQ(back.numbers, value.numbers);
  EXPECT_TRUE(back.pair[0].equal(value.pair[0]));
  EXPECT_FALSE(back.pair[1].defined());
  EXPECT_EQ(std::get<std::string>(back.one_of), "text");
  EXPECT_TRUE(std::get<0>(back.some));
  EXPECT_TRUE(std::get<1>(back.some).equal(std::get<1>(value.some)));
  EXPECT_TRUE(pack(back).equal(packed));
}

TEST(Pack, SeesClassesThatListTheirParts) {
  const auto back = unpack<Listed>(pack(Listed(torch::arange(3), 9)));
  EXPECT_EQ(back.n(), 9);
  EXPECT_TRUE(back.t().equal(torch::arange(3)));
}

TEST(Pack, TensorsLieInTheBytesWhereverThoseBegin) {
  const auto packed = pack(std::tuple(torch::rand({3}), torch::rand({2}, torch::kDouble)));
  const auto shifted = torch::empty({packed.numel() + 3}, torch::kByte).narrow(0, 3, packed.numel());
  shifted.copy_(packed);
  const auto [a, b] = unpack<std::tuple<at::Tensor, at::Tensor>>(shifted);
  EXPECT_TRUE(pack(std::tuple(a, b)).equal(packed));
  EXPECT_TRUE(std::get<0>(unpack<std::tuple<at::Tensor, at::Tensor>>(packed)).is_alias_of(packed));
}

template <class F>
void expect_refused(F&& f) {
  try {
    f();
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.id(), "MU111");
  }
}

TEST(Pack, RefusesWhatIsNoValue) {
  const auto packed = pack(std::vector<at::Tensor>{torch::ones({112})});
  for (int64_t size = 0; size < packed.numel(); size += 7)
    expect_refused([&] { unpack<std::vector<at::Tensor>>(packed.narrow(0, 0, size)); });
  expect_refused([&] { unpack<at::Tensor>(packed); });
  expect_refused([&] { unpack<std::string>(pack(std::tuple(int64_t{1} << 40, 1))); });
  expect_refused([] { pack(torch::ones({2, 2}).to_sparse()); });
}

}  // namespace
}  // namespace muster::tree
