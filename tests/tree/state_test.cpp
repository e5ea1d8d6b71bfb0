#include "muster/tree/state.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "muster/testing/thrown.h"
#include "muster/tree/detail/named_fields.h"
#include "muster/tree/detail/pack.h"

namespace muster {
namespace {

using testing::thrown_id;

State small_state() {
  return State::Map{{"epoch", 3}, {"rate", 0.5}, {"names", State::List{"a", "b"}}, {"weight", at::arange(4)}};
}

TEST(StateTest, HoldsWhatItWasGiven) {
  const auto state = small_state();
  EXPECT_EQ(state.at("epoch").as<int>(), 3);
  EXPECT_EQ(state.at("rate").number(), 0.5);
  EXPECT_EQ(state.at("epoch").number(), 3.0);
  EXPECT_EQ(state.at("names").list()[1].text(), "b");
  EXPECT_TRUE(at::equal(state.at("weight").tensor(), at::arange(4)));
  EXPECT_TRUE(State().empty());
  EXPECT_FALSE(State(true).empty());
  EXPECT_TRUE(State(true).boolean());
}

TEST(StateTest, UnsignedNumbersKeepTheirBits) {
  const auto largest = std::numeric_limits<std::uint64_t>::max();
  EXPECT_EQ(State(largest).as<std::uint64_t>(), largest);
}

TEST(StateTest, WhatIsSomethingElseIsNamed) {
  EXPECT_EQ(thrown_id([] { small_state().at("epoch").text(); }), "MU208");
  EXPECT_EQ(thrown_id([] { small_state().at("rate").integer(); }), "MU208");
  EXPECT_EQ(thrown_id([] { State(300).as<std::int8_t>(); }), "MU208");
  EXPECT_EQ(thrown_id([] { State(1).at("x"); }), "MU208");
}

TEST(StateTest, AMissingNameListsTheOthers) {
  const auto message = testing::thrown([] { small_state().at("epochs"); });
  EXPECT_NE(message.find("MU209"), std::string::npos);
  EXPECT_NE(message.find("epoch, rate, names, weight"), std::string::npos);
  EXPECT_EQ(small_state().find("epochs"), nullptr);
  EXPECT_EQ(thrown_id([] { State(State::Map{{"a", 1}, {"b", 2}, {"a", 3}}); }), "MU209");
}

TEST(StateTest, SetAddsAndReplaces) {
  State state;
  state.set("a", 1);
  state.set("b", 2);
  state.set("a", "one");
  ASSERT_EQ(state.map().size(), 2U);
  EXPECT_EQ(state.map()[0].first, "a");
  EXPECT_EQ(state.at("a").text(), "one");
}

TEST(StateTest, IdenticalMeansToTheBit) {
  EXPECT_TRUE(identical(small_state(), small_state()));
  EXPECT_FALSE(identical(State(1), State(1.0)));
  EXPECT_FALSE(identical(State(0.0), State(-0.0)));
  EXPECT_TRUE(identical(State(std::nan("")), State(std::nan(""))));
  EXPECT_FALSE(identical(State(at::zeros(2)), State(-at::zeros(2))));
  EXPECT_FALSE(identical(State(at::zeros(2)), State(at::zeros(2, at::kDouble))));
  EXPECT_FALSE(identical(State(State::List{1, 2}), State(State::List{1})));
  EXPECT_TRUE(identical(State(at::arange(6).view({2, 3}).t()), State(at::arange(6).view({2, 3}).t().contiguous())));
}

TEST(StateTest, ACloneHasItsOwnMemory) {
  const auto state = small_state();
  const auto copy = clone(state);
  EXPECT_TRUE(identical(state, copy));
  copy.at("weight").tensor().fill_(7);
  EXPECT_FALSE(identical(state, copy));
}

TEST(StateTest, ComesBackFromBytes) {
  auto state = small_state();
  state.set("nothing", State());
  state.set("undefined", at::Tensor());
  state.set("nested", State::List{true, State::Map{{"bits", std::nan("")}}, State::List{}});
  const auto packed = tree::pack(state);
  EXPECT_TRUE(identical(tree::unpack<State>(packed), state));
  EXPECT_EQ(thrown_id([&] { tree::unpack<State>(packed.narrow(0, 0, packed.numel() / 2)); }), "MU111");
}

TEST(StateTest, TensorsAreFoundWithTheirPaths) {
  State state = State::Map{{"a", State::List{at::zeros(1), 3, at::ones(1)}}, {"b", State::Map{{"c", at::zeros(2)}}}};
  std::vector<std::string> paths;
  for_each_tensor(state, [&](const std::string& path, const at::Tensor&) { paths.push_back(path); });
  EXPECT_EQ(paths, (std::vector<std::string>{"a/0", "a/2", "b/c"}));
}

struct Counter {
  int count = 0;
  State state_dict() const { return State::Map{{"count", count}}; }
  void load_state_dict(const State& state) { count = state.at("count").as<int>(); }
};
static_assert(Stateful<Counter>);
static_assert(!Stateful<std::string>);

struct Betas {
  std::array<double, 2> betas{0.9, 0.99};
  double lr = 1;
};

TEST(NamedFields, AnArrayIsAListOfItsLength) {
  const auto state = tree::state_of(Betas{{0.5, 0.6}, 3});
  Betas loaded;
  tree::load_fields(loaded, state);
  EXPECT_EQ(loaded.betas, (std::array<double, 2>{0.5, 0.6}));
  EXPECT_EQ(loaded.lr, 3);
  std::array<double, 3> three{};
  EXPECT_EQ(thrown_id([&] { tree::load_fields(three, state.at("betas")); }), "MU208");
}

TEST(NamedFields, AreNamedInStructsOfAnyLinkage) {
  struct Local {
    int64_t epochs = 2;
    std::string name = "abc";
  };
  const auto state = tree::state_of(Local());
  EXPECT_EQ(state.at("epochs").as<int>(), 2);
  EXPECT_EQ(state.at("name").text(), "abc");
}

}  // namespace
}  // namespace muster
