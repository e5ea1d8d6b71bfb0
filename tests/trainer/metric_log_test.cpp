#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/metrics.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster::metric_log {
namespace {

using testing::CountingModule, testing::quiet;

/// Counts the labels of odd batches as wrong.
struct Judged : CountingModule {
  using CountingModule::CountingModule;
  Accuracy accuracy = {};
  MeanMetric trained_mean = {};
  ConfusionMatrix confusion = ConfusionMatrix(2);
  double at_epoch_end = -1;

  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    trained_mean.update(batch);
    log("mean", trained_mean);
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t) {
    const auto label = batch.flatten().to(torch::kLong) % 2;
    accuracy.update(torch::zeros_like(label), label);
    confusion.update(torch::zeros_like(label), label);
    log("accuracy", accuracy);
    log("confusion", confusion);
  }
  void on_validation_epoch_end() override { at_epoch_end = accuracy.value().item<double>(); }
};

TEST(MetricLog, AMetricHasOneValuePerEpoch) {
  Judged module(4, 5);
  Trainer trainer({.enable_checkpointing = false, .max_epochs = 2});
  trainer.fit(module);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("accuracy"), 0.6);
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("mean"), 1.5);
  EXPECT_DOUBLE_EQ(module.at_epoch_end, 0.6);
  EXPECT_FALSE(trainer.callback_metrics().contains("confusion")) << "it is not a number";
  EXPECT_TRUE(module.confusion.value().equal(torch::tensor({{3, 0}, {2, 0}})));
  EXPECT_DOUBLE_EQ(trainer.validate(module).at(0).at("accuracy"), 0.6);
}

TEST(MetricLog, EachSampleCountsOnceOnSeveralRanks) {
  testing::as_ranks(2, [] {
    for (const int64_t samples : {1, 2, 3, 5}) {  // ranks without a batch of their own run one whose update is undone
      Judged module(2, samples);
      Trainer trainer(quiet({.max_epochs = 1}));
      const auto metrics = trainer.validate(module);
      const auto even = static_cast<double>((samples + 1) / 2);
      EXPECT_DOUBLE_EQ(metrics.at(0).at("accuracy"), even / static_cast<double>(samples)) << samples;
      EXPECT_EQ(module.confusion.value().sum().item<int64_t>(), samples);
    }
  });
}

TEST(MetricLog, TheLoggerGetsTheValueOfTheEpoch) {
  const testing::TemporaryFolder folder;
  const auto recorder = std::make_shared<testing::Recorder>();
  Judged module(4, 5);
  Trainer trainer(testing::logging_to(folder.path(), recorder, {.max_epochs = 2}));
  trainer.fit(module);
  EXPECT_EQ(recorder->steps_of("accuracy"), (std::vector<int64_t>{3, 7}));
  EXPECT_EQ(recorder->steps_of("mean"), (std::vector<int64_t>{3, 7}));
}

struct Several : CountingModule {
  std::array<Accuracy, 2> accuracies = {};
  bool shares = false;
  void validation_step(torch::Tensor& batch, int64_t, int64_t dataloader_idx) {
    auto& accuracy = accuracies.at(shares ? 0 : static_cast<size_t>(dataloader_idx));
    const auto label = batch.flatten().to(torch::kLong) % 2;
    accuracy.update(torch::zeros_like(label), label);
    log("accuracy", accuracy);
  }
};

TEST(MetricLog, EachLoaderHasAMetricOfItsOwn) {  // MU458
  const auto validate = [](bool shares) {
    Several module;
    module.shares = shares;
    Trainer trainer(quiet({}));
    return trainer.validate(module, std::tuple(CountingModule::numbers(2), CountingModule::numbers(3)));
  };
  const auto metrics = validate(false);
  EXPECT_DOUBLE_EQ(metrics.at(0).at("accuracy/dataloader_idx_0"), 0.5);
  EXPECT_DOUBLE_EQ(metrics.at(1).at("accuracy/dataloader_idx_1"), 2.0 / 3);
  EXPECT_EQ(testing::thrown_id([&] { validate(true); }), "MU458");
}

TEST(MetricLog, ANameIsThatOfOneMetric) {  // MU458
  struct Twice : Judged {
    void validation_step(torch::Tensor&, int64_t) {
      log("x", accuracy);
      log("x", trained_mean);
    }
  };
  Twice module;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).validate(module); }), "MU458");
}

struct Stepwise : Judged {
  void validation_step(torch::Tensor&, int64_t) { log("accuracy", accuracy, {.on_step = true}); }
};
struct TooEarly : Judged {
  void on_fit_start() override { log("accuracy", accuracy); }
};

TEST(MetricLog, AMetricIsLoggedWhereItHasAnEpoch) {  // MU441, MU458
  Stepwise stepwise;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).validate(stepwise); }), "MU458");
  TooEarly early;
  EXPECT_EQ(testing::thrown_id([&] { Trainer(quiet({})).fit(early); }), "MU441");
}

}  // namespace
}  // namespace muster::metric_log
