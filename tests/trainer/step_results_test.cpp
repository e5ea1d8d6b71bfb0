// What training_step() may return, and where it arrives.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "trainer/counting_module.h"

namespace muster::step_results {
namespace {

using testing::CountingModule, testing::quiet;
using Map = std::map<std::string, torch::Tensor>;

struct Result {
  torch::Tensor loss;
  int64_t index;
};

/// Its results are of one type; what arrives of them is kept.
template <class R>
struct Returning : CountingModule {
  Returning() : CountingModule(3, 0) {}
  std::vector<R> arrived = {};
  R training_step(torch::Tensor& batch, int64_t batch_idx);
  void on_train_batch_end(const StepOutput& output, torch::Tensor&, int64_t) {
    ASSERT_TRUE(output.get_if<R>());
    arrived.push_back(*output.get_if<R>());
  }
};
template <>
Result Returning<Result>::training_step(torch::Tensor& batch, int64_t batch_idx) {
  return {w * batch.sum(), batch_idx};
}
template <>
std::optional<Result> Returning<std::optional<Result>>::training_step(torch::Tensor& batch, int64_t batch_idx) {
  if (batch_idx == 1) return std::nullopt;
  return Result{w * batch.sum(), batch_idx};
}
template <>
Map Returning<Map>::training_step(torch::Tensor& batch, int64_t batch_idx) {
  return {{batch_idx < 2 ? "loss" : "los", w * batch.sum()}, {"batch", batch.clone()}};
}

TEST(StepResults, AStructWithALossArrivesWhole) {
  Returning<Result> module;
  Trainer(quiet({.max_epochs = 1})).fit(module);
  ASSERT_EQ(module.arrived.size(), 3U);
  EXPECT_EQ(module.arrived[2].index, 2);
  EXPECT_NEAR(module.w.item<double>(), 1 - 0.1 * 3, 1e-6);
}

TEST(StepResults, AnEmptyOneLeavesItsBatchOut) {
  Returning<std::optional<Result>> module;
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module);
  ASSERT_EQ(module.arrived.size(), 3U);
  EXPECT_FALSE(module.arrived[1]);
  EXPECT_EQ(trainer.global_step(), 2);
  EXPECT_NEAR(module.w.item<double>(), 1 - 0.1 * 2, 1e-6);
}

TEST(StepResults, AMapNeedsALoss) {  // MU520
  Returning<Map> module;
  Trainer trainer(quiet({.max_epochs = 1}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU520");
  ASSERT_EQ(module.arrived.size(), 2U);
  EXPECT_EQ(module.arrived[1].at("batch").item<float>(), 1);
  EXPECT_EQ(trainer.global_step(), 2);
}

}  // namespace
}  // namespace muster::step_results
