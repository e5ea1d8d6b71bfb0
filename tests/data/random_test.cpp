#include "muster/data/random.h"

#include <random>
#include <set>

#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(SampleRandom, IsAFunctionOfSeedEpochAndIndex) {
  auto first = [](uint64_t seed, int64_t epoch, int64_t index) { return SampleRandom(seed, epoch, index)(); };
  EXPECT_EQ(first(1, 2, 3), first(1, 2, 3));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (int64_t epoch = 0; epoch < 10; ++epoch)
      for (int64_t index = 0; index < 10; ++index) seen.insert(first(seed, epoch, index));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_EQ(EpochRandom(1, 2).at(3)(), first(1, 2, 3));
}

TEST(SampleRandom, NumbersAreUniform) {
  SampleRandom random(1, 1, 1);
  double sum = 0;
  int counts[10] = {};
  for (int i = 0; i < 100000; ++i) {
    const double u = random.uniform();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    ++counts[random.below(10)];
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  std::normal_distribution<double> normal;
  EXPECT_TRUE(std::isfinite(normal(random)));
}

TEST(SampleRandom, GeneratorIsItsOwn) {
  SampleRandom a(1, 0, 5), b(1, 0, 5);
  auto g = a.generator(), h = b.generator();
  EXPECT_TRUE(at::rand({4}, g).equal(at::rand({4}, h)));
  auto later = a.generator();
  EXPECT_FALSE(at::rand({4}, later).equal(at::rand({4}, h)));
}

}  // namespace
}  // namespace muster
