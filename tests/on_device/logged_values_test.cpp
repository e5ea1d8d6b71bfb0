// What a Trainer logs has the same bits on the simulated accelerator as on the CPU.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/metrics.h"
#include "muster/trainer.h"
#include "runtime/device_course.h"
#include "runtime/sum_dtype.h"

namespace muster::logged_values {
namespace {

using Batch = torch::data::Example<>;

struct Logging : TrainerModule {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(7, 19));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(19, 3));
  Accuracy accuracy, right;
  MeanMetric mean;
  bool reads = false;  ///< what was logged, after each batch
  std::vector<Metrics> read;

  torch::Tensor training_step(Batch& batch, int64_t batch_idx) {
    const auto answer = out(torch::tanh(hidden(batch.data)));
    const auto loss = (answer - batch.target).pow(2).mean();
    log("loss", loss, {.on_epoch = true, .on_step = true});
    log("weighted", loss, {.batch_size = 3 + batch_idx, .on_epoch = true});
    log("sum", loss, {.on_epoch = true, .reduce_fx = "sum", .sync_dist = true});
    log("of all", loss, {.on_epoch = true, .on_step = true, .sync_dist = true});
    log("most", loss, {.on_epoch = true, .on_step = true, .reduce_fx = "max", .sync_dist = true});
    log("least", loss, {.on_step = true, .reduce_fx = "min", .sync_dist = true});
    const auto lost = batch_idx % 3 == trainer().runtime().rank() ? loss * NAN : loss;
    log("lost", lost, {.on_step = true, .reduce_fx = "min", .sync_dist = true});
    for (const double factor : {1.0, 0.3, 0.7}) log("thrice", loss * factor, {.on_epoch = true, .on_step = true});
    // Numbers of the host and of the device in turn.
    const auto mixed = [&](const char* name, const LogOptions& options) {
      if (batch_idx % 2 == 0) log(name, loss, options);
      else log(name, 0.1 * static_cast<double>(batch_idx), options);
    };
    mixed("mixed", {.on_epoch = true});
    mixed("most mixed", {.on_epoch = true, .reduce_fx = "max"});
    mixed("least mixed", {.on_epoch = true, .reduce_fx = "min"});
    accuracy.update(answer, batch.target.argmax(1));
    mean.update(answer.detach(), 0.3);
    log("accuracy", accuracy);
    log("mean", mean);
    return loss;
  }
  void validation_step(Batch& batch, int64_t) {
    const auto answer = out(torch::tanh(hidden(batch.data)));
    const auto loss = (answer - batch.target).abs().mean();
    const LogOptions both{.on_epoch = true, .on_step = true, .sync_dist = true};
    auto most = both, sum = both;
    most.reduce_fx = "max", sum.reduce_fx = "sum";
    log("val", loss, both);
    log("val most", loss, most);
    log("val sum", loss, sum);
    right.update(answer, batch.target.argmax(1));
    log("right", right);
  }
  void on_train_batch_end(const StepOutput&, Batch&, int64_t) {
    if (reads) read.push_back(trainer().callback_metrics());
  }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.05); }
};

DataLoader<Batch> points(int count, int64_t batch_size) {
  std::vector<Batch> rows;
  for (int i = 0; i < count; ++i)
    rows.emplace_back(torch::cos(torch::arange(7, torch::kFloat) * (i + 1)), torch::sin(torch::arange(3.0F) + i));
  return DataLoader(rows, {.batch_size = batch_size});
}

/// All that callbacks can see; with `reads` after each batch, else at the end.
std::vector<Metrics> logged(const char* accelerator, bool reads) {
  torch::manual_seed(3);
  const auto module = std::make_shared<Logging>();
  module->reads = reads;
  Trainer trainer({.accelerator = accelerator,
                   .device_backend = testing::simulated_backend(),
                   .enable_checkpointing = false,
                   .enable_model_summary = false,
                   .enable_progress_bar = false,
                   .max_epochs = 3,
                   .num_sanity_val_steps = 0});
  trainer.fit(module, points(42, 3), points(13, 4));
  module->read.push_back(trainer.callback_metrics());
  return module->read;
}

bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

void expect_same(const std::vector<Metrics>& got, const std::vector<Metrics>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), wanted[i].size());
    for (const auto& [name, value] : wanted[i])
      EXPECT_TRUE(same_bits(got[i].at(name), value))
          << name << " of batch " << i << ": " << got[i].at(name) << ", and " << value << " on the CPU";
  }
}

void expect_bits_of_the_cpu(size_t least_names) {
  for (const bool reads : {false, true}) {
    const auto expected = logged("cpu", reads);
    EXPECT_GE(expected.back().size(), least_names);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      SCOPED_TRACE(seed);
      sim::set_seed(seed);
      expect_same(logged("auto", reads), expected);
    }
  }
}

TEST(LoggedValues, OfOneRankHaveTheBitsOfTheCpu) {
  testing::as_device_ranks(1, [] { expect_bits_of_the_cpu(20); });
}

TEST(LoggedValues, OfTwoRanksHaveTheBitsOfTheCpu) {
  testing::as_device_ranks(2, [] { expect_bits_of_the_cpu(20); });
}

TEST(LoggedValues, OfThreeRanksHaveTheBitsOfTheCpu) {
  testing::as_device_ranks(3, [] { expect_bits_of_the_cpu(20); });
}

TEST(LoggedValues, AreAddedInTheWidestDtypeOfTheirDevice) {
  EXPECT_EQ(runtime::sum_dtype(at::kCPU), at::kDouble);
  EXPECT_EQ(runtime::sum_dtype(sim::device(0)), at::kDouble);
  EXPECT_EQ(runtime::sum_dtype(at::kMPS), at::kFloat);
}

}  // namespace
}  // namespace muster::logged_values
