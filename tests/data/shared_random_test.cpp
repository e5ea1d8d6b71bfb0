#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "data/random.h"
#include "datasets.h"
#include "muster/data/sample_split.h"
#include "muster/testing/gtest.h"
#include "muster/testing/thrown.h"

namespace muster::data {
namespace {

TEST(SharedRandom, RankZerosSeedCounts) {
  testing::Batches order[2];
  muster::testing::run_threads(2, 0, [&](comm::Communicator group) {
    const auto data = testing::numbers(32);
    const auto seed = static_cast<uint64_t>(group.rank());
    const auto loader = DataLoader(data, {.batch_size = 4, .shuffle = true})
                            .distributed({.group = std::make_shared<comm::Communicator>(group),
                                          .rank = group.rank(),
                                          .seed = seed,
                                          .world_size = 2});
    EXPECT_EQ(loader.save_position().seed, 0u);
    order[group.rank()] = testing::run(loader);
  });
  std::vector<int64_t> all;
  for (const auto& rank : order)
    for (const auto& batch : rank) all.insert(all.end(), batch.begin(), batch.end());
  std::ranges::sort(all);
  EXPECT_EQ(all, testing::numbers(32));
}

TEST(SharedRandom, DifferentLoadersAreAnErrorOnEveryRank) {
  muster::testing::run_threads(3, 0, [](comm::Communicator group) {
    const int64_t batch_size = group.rank() == 2 ? 5 : 4;
    const auto said = muster::testing::thrown([&] {
      const auto data = testing::numbers(32);
      (void)DataLoader(data, {.batch_size = batch_size})
          .distributed({.group = std::make_shared<comm::Communicator>(group), .rank = group.rank(), .world_size = 3});
    });
    EXPECT_EQ(said.substr(0, 5), "MU115");
    EXPECT_NE(said.find("batch_size 5"), std::string::npos) << said;
  });
}

TEST(SharedRandom, GeneratorsOnRequest) {
  for (const bool cpu : {false, true})
    muster::testing::expect_processes(
        2,
        [cpu](comm::Communicator group) {
          auto generator = at::detail::getDefaultCPUGenerator();
          generator.set_current_seed(10 + group.rank());
          const auto data = testing::numbers(4);
          const auto loader = DataLoader(data).distributed({.group = std::make_shared<comm::Communicator>(group),
                                                            .rank = group.rank(),
                                                            .synced_generators = {.cpu = cpu},
                                                            .world_size = 2});
          for (auto& batch : loader) (void)batch;
          const auto drawn = group.all_gather(at::rand({4}));
          EXPECT_EQ(drawn[0].equal(drawn[1]), cpu);
        },
        cpu ? "cpu" : "none");
}

}  // namespace
}  // namespace muster::data
