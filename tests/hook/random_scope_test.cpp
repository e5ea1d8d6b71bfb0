#include "hook/random_scope.h"

#include <functional>
#include <thread>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace muster::hook {
namespace {

at::Tensor default_state() { return at::detail::getDefaultCPUGenerator().get_state(); }

const std::vector<std::function<at::Tensor()>>& drawing() {
  static const std::vector<std::function<at::Tensor()>> all{
      [] { return torch::rand({3}); },
      [] {
        return torch::randn({2, 2});
      },
      [] { return torch::randint(100, {5}); },
      [] { return torch::randperm(10); },
      [] { return torch::empty({4}).uniform_(-1, 1); },
      [] { return torch::full({6}, 0.5).bernoulli(); },
      [] { return torch::normal(0.0, 1.0, {3}); },
      [] { return torch::dropout(torch::ones({8}), 0.5, true); },
      [] { return torch::multinomial(torch::ones({10}), 4); },
      [] { return torch::rand_like(torch::ones({3}, torch::kDouble)); },
      [] { return torch::empty({3}).exponential_(); },
  };
  return all;
}

TEST(RandomScope, OperatorsDrawFromTheSeedAndLeaveTheDefaultGeneratorAlone) {
  torch::manual_seed(1);
  const auto before = default_state();
  for (std::size_t i = 0; i < drawing().size(); ++i) {
    RandomScope scope;
    scope.seed(5);
    const auto once = drawing()[i](), more = drawing()[i]();
    scope.seed(5);
    EXPECT_TRUE(drawing()[i]().equal(once)) << i;
    scope.seed(6);
    EXPECT_FALSE(drawing()[i]().equal(once)) << i;
    EXPECT_FALSE(more.equal(once)) << i;
    EXPECT_TRUE(default_state().equal(before)) << i;
  }
  torch::rand({1});
  EXPECT_FALSE(default_state().equal(before));
}

TEST(RandomScope, GivesWhatTheDefaultGeneratorWouldGiveForTheSeed) {
  for (const auto& draw : drawing()) {
    torch::manual_seed(7);
    const auto expected = draw();
    RandomScope scope;
    scope.seed(7);
    EXPECT_TRUE(draw().equal(expected));
  }
}

TEST(RandomScope, AGeneratorGivenByNameCounts) {
  const auto own = at::make_generator<at::CPUGeneratorImpl>(3);
  const auto expected = torch::rand({3}, at::make_generator<at::CPUGeneratorImpl>(3));
  RandomScope scope;
  EXPECT_TRUE(torch::rand({3}, own).equal(expected));
  const auto before = default_state();
  torch::empty({3}).uniform_(0, 1, at::detail::getDefaultCPUGenerator());
  EXPECT_TRUE(default_state().equal(before));
}

TEST(RandomScope, BelongsToItsThreadAndMayBeNested) {
  torch::manual_seed(1);
  const auto expected = torch::rand({2});
  torch::manual_seed(1);
  RandomScope outer;
  outer.seed(2);
  const auto first = torch::rand({2});
  at::Tensor other;
  std::thread([&] { other = torch::rand({2}); }).join();
  EXPECT_TRUE(other.equal(expected));
  outer.seed(2);
  {
    RandomScope inner;
    inner.seed(9);
    EXPECT_FALSE(torch::rand({2}).equal(first));
    EXPECT_EQ(RandomScope::current(), &inner);
  }
  EXPECT_TRUE(torch::rand({2}).equal(first));
}

TEST(RandomScope, GradientsFlowThroughRandomOperators) {
  RandomScope scope;
  auto x = torch::ones({64}, torch::requires_grad());
  const auto y = torch::dropout(x, 0.5, true);
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y.detach()));
}

}  // namespace
}  // namespace muster::hook
