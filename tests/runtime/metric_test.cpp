#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/fabric.h"
#include "muster/runtime/metrics.h"
#include "muster/testing/thrown.h"
#include "muster/testing/world.h"
#include "runtime/ranks.h"

namespace muster::metric_test {
namespace {

using testing::thrown_id;

/// A program's own: the range of all values.
class Range final : public Metric {
 public:
  Range()
      : Metric({{torch::full({}, std::numeric_limits<double>::infinity(), torch::kDouble), comm::ReduceOp::min},
                {torch::full({}, -std::numeric_limits<double>::infinity(), torch::kDouble), comm::ReduceOp::max}}) {}
  void update(double value) {
    state(0) = state(0).clamp_max(value);
    state(1) = state(1).clamp_min(value);
  }
  torch::Tensor compute() const override { return state(1) - state(0); }
};

TEST(Metric, CountsEachUpdateOfEveryRankOnce) {
  testing::run_threads(3, 0, [](const comm::Communicator& group) {
    Accuracy accuracy;
    MeanMetric mean;
    ConfusionMatrix confusion(2);
    for (int batch = 0; batch <= group.rank(); ++batch) {  // rank r has r + 1 batches, of which the first is right
      accuracy.update(torch::tensor({{0.1, 0.9}}), torch::tensor({batch == 0 ? 1 : 0}));
      mean.update(torch::tensor({1.0 * group.rank()}));
      confusion.update(torch::tensor({1}), torch::tensor({batch == 0 ? 1 : 0}));
    }
    MetricReduction::run(group, "metrics", {&accuracy, &mean, &confusion});
    EXPECT_DOUBLE_EQ(accuracy.value().item<double>(), 3.0 / 6);
    EXPECT_DOUBLE_EQ(mean.value().item<double>(), (0 + 1 + 1 + 2 + 2 + 2) / 6.0);
    EXPECT_TRUE(confusion.value().equal(torch::tensor({{0, 3}, {0, 3}})));
    EXPECT_EQ(confusion.value().scalar_type(), torch::kLong);
    EXPECT_TRUE(std::isnan(accuracy.compute().item<double>())) << "it starts from scratch";
  });
}

TEST(Metric, OneMessageReducesAllOfThem) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    int64_t operations = 0;
    group.observe([&](const comm::OperationEvent&) { ++operations; });
    Accuracy accuracy;
    MeanMetric mean;
    Range range;
    accuracy.update(torch::tensor({group.rank()}), torch::tensor({0}));
    mean.update(torch::ones({2}), 3);
    range.update(10.0 * group.rank());
    MetricReduction::run(group, "metrics", {&accuracy, &mean, &range});
    EXPECT_EQ(operations, 1);
    EXPECT_EQ(accuracy.value().item<double>(), 0.5);
    EXPECT_EQ(mean.value().item<double>(), 1.0);
    EXPECT_EQ(range.value().item<double>(), 10.0);
    group.observe(nullptr);
  });
}

TEST(Metric, RanksWithOtherMetricsAreToldSo) {
  testing::run_threads(2, 0, [](const comm::Communicator& group) {
    Accuracy accuracy;
    MeanMetric mean;
    std::vector<Metric*> mine{&accuracy};
    if (group.rank() == 1) mine.push_back(&mean);
    EXPECT_EQ(thrown_id([&] { MetricReduction::run(group, "metrics", mine); }), "MU050");
  });
}

TEST(Metric, WorksInLoopsOfBothApis) {
  testing::as_ranks(2, [] {
    const auto values_of = [](const auto& api, int rank) {
      Accuracy accuracy;
      Range range;
      accuracy.update(torch::tensor({0, 1, rank}), torch::tensor({0, 1, 0}));
      range.update(rank);
      return compute_over_ranks(api, accuracy, range);
    };
    Accelerator accelerator;
    const auto [accuracy, range] = values_of(accelerator, accelerator.process_index());
    EXPECT_DOUBLE_EQ(accuracy.item<double>(), 5.0 / 6);
    EXPECT_EQ(range.item<double>(), 1.0);
    Fabric fabric;
    EXPECT_DOUBLE_EQ(values_of(fabric, fabric.global_rank())[0].item<double>(), 5.0 / 6);
  });
}

TEST(Metric, SavesAndLoadsWhatItHasSeen) {
  MeanMetric first, second;
  first.update(torch::tensor({1.0, 2.0}));
  second.load_state_dict(first.state_dict());
  second.update(torch::tensor({6.0}));
  EXPECT_DOUBLE_EQ(second.compute().item<double>(), 3.0);
  EXPECT_DOUBLE_EQ(first.compute().item<double>(), 1.5) << "they share no memory";
  ConfusionMatrix other(3);
  EXPECT_EQ(thrown_id([&] { other.load_state_dict(first.state_dict()); }), "MU209");
}

struct Wrong : Metric {
  explicit Wrong(MetricState state) : Metric({std::move(state)}) {}
  torch::Tensor compute() const override { return state(0); }
};

TEST(Metric, RefusesWhatHasNoValue) {  // MU458, MU459
  EXPECT_EQ(thrown_id([] { Wrong wrong({}); }), "MU458");
  EXPECT_EQ(thrown_id([] { Wrong wrong({torch::zeros({}), comm::ReduceOp::mean}); }), "MU458");
  Accuracy accuracy;
  EXPECT_EQ(thrown_id([&] { accuracy.update(torch::zeros({2, 3}), torch::zeros({3})); }), "MU459");
  ConfusionMatrix confusion(2);
  EXPECT_EQ(thrown_id([&] { confusion.update(torch::tensor({2}), torch::tensor({0})); }), "MU459");
  EXPECT_EQ(thrown_id([] { ConfusionMatrix none(0); }), "MU459");
}

}  // namespace
}  // namespace muster::metric_test
