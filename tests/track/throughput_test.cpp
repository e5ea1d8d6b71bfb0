#include "muster/track/throughput.h"

#include <gtest/gtest.h>

#include "muster/base/error.h"

namespace muster {
namespace {

using Values = std::map<std::string, double>;

/// The figures of Lightning's Throughput for the same updates.
TEST(Throughput, AsLightningCounts) {
  Throughput throughput({.available_flops = 100, .window = 3, .world_size = 2});
  EXPECT_TRUE(throughput.compute().empty());
  for (int t = 1; t <= 4; ++t) {
    throughput.update(
        {.batches = t, .flops = 10, .lengths = 6 * t, .samples = 2 * t, .seconds = static_cast<double>(t)});
    if (t == 1) {
      EXPECT_EQ(throughput.compute(), (Values{{"time", 1}, {"batches", 1}, {"samples", 2}, {"lengths", 6}}));
    }
  }
  EXPECT_EQ(throughput.compute(), (Values{{"time", 4},
                                          {"batches", 4},
                                          {"samples", 8},
                                          {"lengths", 24},
                                          {"device/batches_per_sec", 1},
                                          {"batches_per_sec", 2},
                                          {"device/samples_per_sec", 2},
                                          {"samples_per_sec", 4},
                                          {"device/items_per_sec", 6},
                                          {"items_per_sec", 12},
                                          {"device/flops_per_sec", 10},
                                          {"flops_per_sec", 20},
                                          {"device/mfu", 0.1}}));
  throughput.reset();
  EXPECT_TRUE(throughput.compute().empty());
}

TEST(Throughput, TellsNoWorldForOneRankAndNothingUncounted) {
  Throughput throughput;
  throughput.update({.batches = 1, .samples = 1, .seconds = 1});
  throughput.update({.batches = 3, .samples = 9, .seconds = 3});
  EXPECT_EQ(
      throughput.compute(),
      (Values{
          {"time", 3}, {"batches", 3}, {"samples", 9}, {"device/batches_per_sec", 1}, {"device/samples_per_sec", 4}}));
}

TEST(Throughput, RefusesWhatDoesNotGrow) {  // MU007 MU008
  EXPECT_THROW(Throughput({.window = 1}), ConfigError);
  EXPECT_THROW(Throughput({.world_size = 0}), ConfigError);
  Throughput throughput;
  const ThroughputCounts good{.batches = 2, .lengths = 8, .samples = 4, .seconds = 1};
  throughput.update(good);
  for (auto bad : {ThroughputCounts{3, 0, 9, 5, 1}, ThroughputCounts{2, 0, 9, 5, 2}, ThroughputCounts{3, 0, 9, 4, 2},
                   ThroughputCounts{3, 0, 8, 5, 2}, ThroughputCounts{6, 0, 9, 5, 2}}) {
    try {
      throughput.update(bad);
      ADD_FAILURE() << bad.batches << " batches at " << bad.seconds << " s went through";
    } catch (const UsageError& error) {
      EXPECT_EQ(error.id(), "MU008");
    }
  }
  throughput.update({.batches = 3, .lengths = 9, .samples = 5, .seconds = 2});
}

}  // namespace
}  // namespace muster
