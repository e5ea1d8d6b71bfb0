// On a device under loss scaling a step is known when the next one begins.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/parallel/sharded_options.h"
#include "muster/testing/compare.h"
#include "muster/trainer.h"
#include "runtime/counted_waits.h"
#include "runtime/device_course.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::late_steps {
namespace {

using Batch = torch::data::Example<>;
using testing::Waits;

/// Losses overflow at first, and the scale grows again later.
constexpr GradScalerOptions kOverflowing{.backoff_factor = 1.0 / 64, .growth_interval = 3, .init_scale = 1U << 30U};

/// Three layers, to be cut into units.
struct Net : TrainerModule {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(7, 19));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(19, 19));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(19, 3));
  std::shared_ptr<torch::optim::AdamW> adam;
  std::set<std::string> uses;
  std::vector<double> rates;
  int64_t batches = 0;
  std::vector<int64_t> counts;  ///< of steps, after each batch
  std::function<void(Net&, int64_t batch_idx)> in_step = [](Net&, int64_t) {};

  torch::Tensor training_step(Batch& batch, int64_t batch_idx) {
    ++batches;
    in_step(*this, batch_idx);
    const auto answer = out(torch::relu(middle(torch::tanh(hidden(batch.data)))));
    return (answer.to(at::kFloat) - batch.target).pow(2).mean();
  }
  void on_train_batch_end(const StepOutput&, Batch&, int64_t) {
    if (uses.contains("counts")) counts.push_back(global_step());
    if (uses.contains("rates")) rates.push_back(optimizers()[0].param_groups()[0].options().get_lr());
  }
  Optimizers configure_optimizers() override {
    adam = std::make_shared<torch::optim::AdamW>(parameters(), torch::optim::AdamWOptions(0.05));
    return {adam, LRSchedulerConfig{
                      .frequency = 2, .interval = "step", .scheduler = StepLR(*adam, {.gamma = 0.5, .step_size = 1})}};
  }
};

std::shared_ptr<Net> seeded_net() {
  torch::manual_seed(3);
  return std::make_shared<Net>();
}

DataLoader<Batch> points(int count = 160) {
  std::vector<Batch> rows;
  for (int i = 0; i < count; ++i)
    rows.emplace_back(torch::cos(torch::arange(7, torch::kFloat) * (i + 1)), torch::sin(torch::arange(3.0F) + i));
  return DataLoader(rows, {.batch_size = 4});
}

TrainerOptions options_of(const Strategy& strategy) {
  return testing::quiet({.device_backend = testing::simulated_backend(),
                         .gradient_clip_val = 0.5,
                         .max_epochs = 1,
                         .precision = "16-mixed",
                         .strategy = strategy});
}

/// Four whole steps, without their first.
void expect_waits_for_flags_only(const std::string& name, const Strategy& strategy) {
  SCOPED_TRACE(name);
  sim::set_seed(1);
  const auto net = seeded_net();
  testing::CountedWaits counted;
  net->in_step = [&](Net&, int64_t batch_idx) {
    if (batch_idx == 2) counted.begin();
    if (batch_idx == 6) counted.end();
  };
  const testing::WaitsBySyncPoint counting;
  Trainer(options_of(strategy)).fit(net, points());
  EXPECT_EQ(counted.by_cause, (Waits{{"event", 4}}));
  EXPECT_EQ(counted.by_sync_point, (Waits{{testing::kWaitForFlag, 4}}));
}

FSDP sharded(ShardStage stage, int group = 0) {
  FSDP options{.unit_min_elements = 60};
  options.stage = stage;
  if (group > 0) options.shard_group_size = group;
  return options;
}

TEST(LateSteps, OfOneRankWaitForFlagsOnly) {
  testing::as_device_ranks(1, [] { expect_waits_for_flags_only("one rank", "auto"); });
}

TEST(LateSteps, UnderEachStrategyWaitForFlagsOnly) {
  testing::as_device_ranks(2, [] {
    expect_waits_for_flags_only("ddp", "ddp");
    expect_waits_for_flags_only("zero1", sharded(ShardStage::optimizer));
    expect_waits_for_flags_only("zero2", sharded(ShardStage::gradients));
    expect_waits_for_flags_only("fsdp", sharded(ShardStage::full));
  });
}

TEST(LateSteps, UnderHybridShardingWaitForFlagsOnly) {
  testing::as_device_ranks(4, [] { expect_waits_for_flags_only("hsdp", sharded(ShardStage::full, 2)); });
}

TEST(LateSteps, AreCountedWhenSomebodyAsks) {
  testing::as_device_ranks(1, [] {
    sim::set_seed(2);
    const auto net = seeded_net();
    int64_t most = 0;
    net->in_step = [&](Net& own, int64_t batch_idx) {
      if (batch_idx < 2) return;
      sim::reset_stats();
      const auto steps = own.global_step();
      EXPECT_EQ(sim::stats().host_waits["event"], 1) << "the step before is not known yet";
      EXPECT_EQ(own.optimizers()[0].steps(), steps);
      EXPECT_EQ(own.adam->param_groups()[0].options().get_lr(), 0.05 * std::pow(0.5, steps / 2));
      EXPECT_EQ(sim::stats().host_waits["event"], 1);
      most = std::max(most, steps);
    };
    Trainer trainer(options_of("auto"));
    trainer.fit(net, points());
    EXPECT_EQ(trainer.global_step(), most + 1);
  });
}

/// What a run with these uses has made.
struct Run {
  std::vector<at::Tensor> weights;
  int64_t batches = 0, steps = 0;
  double rate = 0;
  std::vector<int64_t> counts;
  std::vector<double> rates;
  std::set<std::string> checkpoints;
};

Run run_with(const std::set<std::string>& uses, uint64_t seed) {
  sim::set_seed(seed);
  const testing::TemporaryFolder folder;
  const auto net = seeded_net();
  net->uses = uses;
  auto options = options_of("auto");
  options.callbacks = {std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder.path(), .every_n_train_steps = 3, .save_top_k = -1})};
  options.enable_checkpointing = true;
  options.grad_scaler = kOverflowing;
  options.max_epochs = 8;
  options.max_steps = 17;
  Trainer trainer(options);
  trainer.fit(net, points(32));
  Run run{.weights = {},
          .batches = net->batches,
          .steps = trainer.global_step(),
          .rate = net->adam->param_groups()[0].options().get_lr(),
          .counts = net->counts,
          .rates = net->rates,
          .checkpoints = {}};
  for (const auto& parameter : net->parameters()) run.weights.push_back(parameter.detach().cpu());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    run.checkpoints.insert(entry.path().filename().string());
  return run;
}

TEST(LateSteps, AreAsIfTheHostHadKnown) {
  testing::as_device_ranks(1, [] {
    const auto asked = run_with({"counts", "rates"}, 0);
    EXPECT_EQ(asked.steps, 17);
    EXPECT_GT(asked.batches, 19) << "some steps are skipped";
    EXPECT_EQ(asked.checkpoints.size(), 5U);
    EXPECT_EQ(asked.counts.back(), 17);
    EXPECT_NEAR(asked.rate, 0.05 * std::pow(0.5, 8), 1e-12);
    for (uint64_t seed = 0; seed < 5; ++seed)
      for (const std::set<std::string>& uses : {std::set<std::string>{}, {"rates"}, {"counts"}}) {
        const auto run = run_with(uses, seed);
        EXPECT_EQ(run.steps, asked.steps) << seed;
        EXPECT_EQ(run.batches, asked.batches) << seed;
        EXPECT_EQ(run.rate, asked.rate) << seed;
        EXPECT_EQ(run.checkpoints, asked.checkpoints) << seed;
        if (uses.contains("rates")) {
          EXPECT_EQ(run.rates, asked.rates) << seed;
        }
        if (uses.contains("counts")) {
          EXPECT_EQ(run.counts, asked.counts) << seed;
        }
        for (size_t i = 0; i < run.weights.size(); ++i)
          EXPECT_EQ(testing::difference_in_bits(run.weights[i], asked.weights[i]), "") << seed << ", " << i;
      }
  });
}

}  // namespace
}  // namespace muster::late_steps
