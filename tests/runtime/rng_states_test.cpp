#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/base/error.h"
#include "muster/fabric.h"
#include "muster/testing/thrown.h"
#include "runtime/random_state.h"
#include "runtime/ranks.h"

namespace muster::rng_states {
namespace {

using testing::as_ranks;

at::Generator own(uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

torch::Tensor draw(at::Generator generator) { return torch::rand({4}, generator); }

TEST(RngStates, OneRankKeepsItsStates) {
  Accelerator accelerator;
  torch::manual_seed(3);
  const auto mine = own(5);
  accelerator.synchronize_rng_states({.cpu = true, .device = true}, mine);
  const auto drawn = torch::rand({4});
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(drawn, torch::rand({4})));
  EXPECT_TRUE(torch::equal(draw(mine), draw(own(5))));
}

template <class Api>
void expect_rank_zeros_states() {
  Api api;
  const auto rank = static_cast<uint64_t>(api.group().rank());
  torch::manual_seed(10 + rank);
  const auto first = own(20 + rank), second = own(30 + rank), third = own(40 + rank);
  api.synchronize_rng_states({.cpu = true}, first, second);
  EXPECT_TRUE(torch::equal(draw(first), draw(own(20))));
  EXPECT_TRUE(torch::equal(draw(second), draw(own(30))));
  EXPECT_TRUE(torch::equal(draw(third), draw(own(40 + rank))));
  const auto drawn = torch::rand({4});
  torch::manual_seed(10);
  EXPECT_TRUE(torch::equal(drawn, torch::rand({4})));
  torch::manual_seed(10 + rank);
  api.synchronize_rng_states({}, first);  // the default generator is not named
  const auto others = torch::rand({4});
  torch::manual_seed(10 + rank);
  EXPECT_TRUE(torch::equal(others, torch::rand({4})));
}

TEST(RngStates, OtherRanksGetThoseOfRankZero) {
  as_ranks(2, [] {
    expect_rank_zeros_states<Accelerator>();
    expect_rank_zeros_states<Fabric>();
  });
}

TEST(RngStates, RanksMustNameTheSameGenerators) {
  as_ranks(2, [] {
    Accelerator accelerator;
    const bool first = accelerator.is_main_process();
    EXPECT_EQ(
        testing::thrown([&] { accelerator.synchronize_rng_states({.cpu = first}); }),
        "MU328: ranks synchronise different generators: rank 0 those of cpu, rank 1 those of none; give all ranks "
        "the same kinds and generators, in the same order");
    EXPECT_EQ(testing::thrown_id([&] { accelerator.synchronize_rng_states({}, first ? at::Generator() : own(1)); }),
              "MU329");
    accelerator.synchronize_rng_states({.cpu = true});  // the group is as it was
  });
}

}  // namespace
}  // namespace muster::rng_states
