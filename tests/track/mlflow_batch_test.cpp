#include <gtest/gtest.h>

#include "track/mlflow_delivery.h"

namespace muster::track {
namespace {

const std::string kMetric = "{\"metrics\":[{\"key\":\"a\",\"step\":1,\"timestamp\":2,\"value\":3}]}\n";
const std::string kParam = "{\"params\":[{\"key\":\"lr\",\"value\":\"1\"}]}\n";

TEST(MlflowBatch, MetricsOfManyLinesAreOne) {
  const auto batch = first_batch(kMetric + kMetric + kParam + kMetric);
  EXPECT_EQ(batch.metrics.size(), 2u);
  EXPECT_TRUE(batch.params.empty());
  EXPECT_EQ(batch.size, 2 * kMetric.size());
}

TEST(MlflowBatch, HasAThousandMetricsAtMost) {
  std::string lines;
  for (int i = 0; i < 1200; ++i) lines += kMetric;
  EXPECT_EQ(first_batch(lines).metrics.size(), 1000u);
  EXPECT_EQ(first_batch(lines).size, 1000 * kMetric.size());
}

TEST(MlflowBatch, OtherLinesAreAlone) {
  EXPECT_EQ(first_batch(kParam + kParam).size, kParam.size());
  EXPECT_EQ(first_batch("{\"artifact\":\"a\"}\n" + kParam).artifact, "a");
  const auto end = first_batch("{\"end_time\":7,\"status\":\"FINISHED\"}\n" + kMetric);
  EXPECT_EQ(end.status, "FINISHED");
  EXPECT_EQ(end.end_time, 7);
}

TEST(MlflowBatch, LinesThatAreDamagedAreCountedAndPassed) {
  for (const std::string line : {"{\"metr\n", "[]\n", "{}\n", "{\"metrics\":7}\n", "{\"metrics\":[{\"key\":\"a\"}]}\n",
                                 "\n", "{\"params\":[1]}\n", "{\"artifact\":1}\n", "{\"status\":[]}\n"}) {
    const auto batch = first_batch(line + kMetric);
    EXPECT_EQ(batch.unreadable, 1) << line;
    EXPECT_EQ(batch.metrics.size(), 1u) << line;
    EXPECT_EQ(batch.size, line.size() + kMetric.size()) << line;
  }
}

}  // namespace
}  // namespace muster::track
