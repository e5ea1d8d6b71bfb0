#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::quiet;
using Indices = PredictionWriter::Indices;

/// Three samples in two batches.
struct Predicting : TrainerModule {
  torch::Tensor predict_step(torch::Tensor& batch, int64_t) { return batch * 10; }
  static auto three() {
    return DataLoader([](int64_t i) { return torch::tensor(static_cast<double>(i)); }, 3, {.batch_size = 2});
  }
};

std::string text_of(const torch::Tensor& tensor) {
  std::string text;
  for (const auto value : std::vector<double>(tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel()))
    text += std::to_string(static_cast<int>(value)) + " ";
  return text;
}

/// Keeps what it is to write.
struct Kept : PredictionWriter {
  using PredictionWriter::PredictionWriter;
  std::vector<Indices> of_batches = {};
  std::vector<std::vector<Indices>> of_epoch = {};
  std::string predicted_by_batch = {}, predicted_by_epoch = {};
  void write_on_batch_end(Trainer&, TrainerModule&, const StepOutput& prediction, const Indices& indices,
                          const BatchView& batch, BatchPlace) override {
    EXPECT_EQ(batch.size(), std::ssize(indices));
    of_batches.push_back(indices);
    predicted_by_batch += text_of(prediction.get_if<torch::Tensor>()->to(torch::kDouble));
  }
  void write_on_epoch_end(Trainer&, TrainerModule&, const std::vector<std::vector<StepOutput>>& predictions,
                          const std::vector<std::vector<Indices>>& indices) override {
    of_epoch = indices;
    for (const auto& loader : predictions)
      for (const auto& prediction : loader)
        predicted_by_epoch += text_of(prediction.get_if<torch::Tensor>()->to(torch::kDouble));
  }
};

std::shared_ptr<Kept> predict(WriteInterval interval) {
  const auto writer = std::make_shared<Kept>(interval);
  Predicting module;
  Trainer(quiet({.callbacks = {writer}})).predict(module, Predicting::three());
  return writer;
}

TEST(PredictionWriter, IndicesAreThoseOfLightning) {
  const auto both = predict("batch_and_epoch");
  EXPECT_EQ(both->of_batches, (std::vector<Indices>{{0, 1}, {2}}));
  EXPECT_EQ(both->of_epoch, (std::vector<std::vector<Indices>>{{{0, 1}, {2}}}));
  EXPECT_EQ(both->predicted_by_batch, "0 10 20 ");
  EXPECT_EQ(both->predicted_by_epoch, "0 10 20 ");
}

TEST(PredictionWriter, TheIntervalSaysWhenItWrites) {
  EXPECT_EQ(predict("batch")->of_batches.size(), 2u);
  EXPECT_TRUE(predict("batch")->of_epoch.empty());
  EXPECT_TRUE(predict("epoch")->of_batches.empty());
  EXPECT_EQ(predict("epoch")->of_epoch.size(), 1u);
}

TEST(PredictionWriter, EachLoaderHasItsList) {
  const auto writer = std::make_shared<Kept>(WriteInterval("epoch"));
  Predicting module;
  Trainer(quiet({.callbacks = {writer}})).predict(module, std::tuple(Predicting::three(), Predicting::three()));
  EXPECT_EQ(writer->of_epoch, (std::vector<std::vector<Indices>>{{{0, 1}, {2}}, {{0, 1}, {2}}}));
}

TEST(PredictionWriter, PredictMayKeepNone) {
  const auto writer = std::make_shared<Kept>();
  Predicting module;
  Trainer trainer(quiet({.callbacks = {writer}}));
  EXPECT_TRUE(trainer.predict(module, Predicting::three(), {.return_predictions = false}).empty());
  EXPECT_EQ(writer->of_batches.size(), 2u);
  EXPECT_EQ(trainer.predict(module, Predicting::three()).size(), 2u);
}

TEST(PredictionWriter, ThreadsAndShufflesGiveTheIndicesToo) {
  struct Checked : PredictionWriter {
    void write_on_batch_end(Trainer&, TrainerModule&, const StepOutput& prediction, const Indices& indices,
                            const BatchView&, BatchPlace) override {
      const auto wanted = torch::tensor(indices, torch::kDouble) * 10;
      EXPECT_TRUE(torch::equal(prediction.get_if<torch::Tensor>()->to(torch::kDouble), wanted));
      seen += std::ssize(indices);
    }
    int64_t seen = 0;
  };
  for (const int workers : {0, 2}) {
    const auto writer = std::make_shared<Checked>();
    Predicting module;
    const DataLoader loader([](int64_t i) { return torch::tensor(static_cast<double>(i)); }, 20,
                            {.batch_size = 3, .shuffle = true, .workers = workers});
    Trainer(quiet({.callbacks = {writer}})).predict(module, loader);
    EXPECT_EQ(writer->seen, 20);
  }
}

TEST(PredictionWriter, EachRankWritesItsOwnAndNoneTwice) {
  testing::as_ranks(2, [] {
    const auto writer = std::make_shared<Kept>(WriteInterval("batch_and_epoch"));
    Predicting module;
    Trainer trainer(quiet({.callbacks = {writer}}));
    trainer.predict(module, Predicting::three());
    const Indices wanted = trainer.runtime().rank() == 0 ? Indices{0, 1} : Indices{2};
    EXPECT_EQ(writer->of_batches, std::vector<Indices>{wanted});
    EXPECT_EQ(writer->of_epoch, std::vector<std::vector<Indices>>{{wanted}});
  });
}

}  // namespace
}  // namespace muster
