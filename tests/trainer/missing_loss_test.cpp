// A rank whose training_step() returns no loss.
#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster::missing_loss_in_trainer {
namespace {

using testing::CountingModule, testing::quiet;

/// The loss is 2 * sum(w), so that gradients are 2.
struct Lossless : TrainerModule {
  std::function<bool(int64_t batch, int rank)> misses = {};
  bool decays = false;
  int64_t steps = 0;
  torch::Tensor w = register_parameter("w", torch::ones({4}));
  std::optional<torch::Tensor> training_step(torch::Tensor&, int64_t batch_idx) {
    const auto loss = w.sum() * 2;
    if (misses(batch_idx, trainer().runtime().rank())) return std::nullopt;
    return loss;
  }
  void on_before_optimizer_step(ModuleOptimizer&) override { ++steps; }
  Optimizers configure_optimizers() override {
    return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.1).weight_decay(decays ? 0.5 : 0));
  }
};

/// What two ranks trained in four batches each.
struct Trained {
  double w = 0;
  int64_t global_step = 0, steps = 0;
};
Trained train(Lossless& module, TrainerOptions options) {
  options.max_epochs = 1;
  Trainer trainer(quiet(std::move(options)));
  trainer.fit(module, CountingModule::numbers(8));
  Trained result{.global_step = trainer.global_step(), .steps = module.steps};
  trainer.runtime().summon_full_params(trainer.model(), [&] { result.w = module.w.detach()[0].item<double>(); });
  return result;
}

TEST(MissingLossInTrainer, ABatchWithoutLossOnEveryRankMakesNoUpdate) {
  for (const std::string strategy : {"ddp", "ddp_find_unused_parameters_true", "zero1", "zero2", "fsdp"})
    testing::as_ranks(
        2,
        [&] {
          Lossless module;
          module.misses = [](int64_t batch, int) { return batch == 1; };
          const auto [w, global_step, steps] = train(module, {.strategy = Strategy::parse(strategy)});
          EXPECT_NEAR(w, 1 - 0.1 * 2 * 3, 1e-6) << strategy;
          EXPECT_EQ(global_step, 3) << strategy;
          EXPECT_EQ(steps, 3) << strategy;
        },
        strategy);
}

TEST(MissingLossInTrainer, NothingDecaysWhereNoRankHasALoss) {
  testing::as_ranks(2, [] {
    for (const std::string strategy : {"ddp", "zero2"}) {
      Lossless module;
      module.decays = true;
      module.misses = [](int64_t, int) { return true; };
      const auto [w, global_step, steps] = train(module, {.strategy = Strategy::parse(strategy)});
      EXPECT_EQ(w, 1.0) << strategy;
      EXPECT_EQ(global_step, 0) << strategy;
    }
  });
}

TEST(MissingLossInTrainer, ALossOnSomeRanksIsAnErrorOfAll) {  // MU152
  testing::as_ranks(2, [] {
    Lossless module;
    module.misses = [](int64_t batch, int rank) { return batch == 1 && rank == 1; };
    EXPECT_EQ(testing::thrown_id([&] { train(module, {.strategy = "ddp"}); }), "MU152");
    EXPECT_EQ(module.steps, 1) << "no hook of the step saw the batch";
  });
}

TEST(MissingLossInTrainer, ZerosCountWhereParametersMayBeUnused) {
  for (const std::string strategy : {"ddp_find_unused_parameters_true", "zero1", "zero2"})
    testing::as_ranks(
        2,
        [&] {
          Lossless module;
          module.misses = [](int64_t batch, int rank) { return batch == 1 && rank == 1; };
          const auto [w, global_step, steps] = train(module, {.strategy = Strategy::parse(strategy)});
          EXPECT_NEAR(w, 1 - 0.1 * (2 + 1 + 2 + 2), 1e-6) << strategy;
          EXPECT_EQ(global_step, 4) << strategy;
          EXPECT_EQ(steps, 4) << strategy;
        },
        strategy);
}

TEST(MissingLossInTrainer, UnderFsdpRanksThatDifferAreToldSo) {
  testing::as_ranks(2, [] {
    Lossless module;
    module.misses = [](int64_t batch, int rank) { return batch == 1 && rank == 1; };
    EXPECT_NE(testing::thrown_id([&] { train(module, {.strategy = "fsdp"}); }), "no error");
  });
}

TEST(MissingLossInTrainer, AWindowStepsIfAnyOfItsBatchesHasALoss) {
  for (const std::string strategy : {"ddp", "zero2"})
    testing::as_ranks(
        2,
        [&] {
          Lossless module;  // each rank misses another batch of the first window, both miss the second one
          module.misses = [](int64_t batch, int rank) { return batch >= 2 || batch != rank; };
          const auto [w, global_step, steps] =
              train(module, {.accumulate_grad_batches = 2, .strategy = Strategy::parse(strategy)});
          EXPECT_NEAR(w, 1 - 0.1 * 1, 1e-6) << strategy;
          EXPECT_EQ(global_step, 1) << strategy;
          EXPECT_EQ(steps, 1) << strategy;
        },
        strategy);
}

TEST(MissingLossInTrainer, UnderLossScalingToo) {
  testing::as_ranks(2, [] {
    Lossless module;
    module.misses = [](int64_t batch, int rank) { return batch == 1 || (batch == 2 && rank == 0); };
    const auto [w, global_step, steps] = train(
        module, {.gradient_clip_val = 100.0, .precision = "16-mixed", .strategy = "ddp_find_unused_parameters_true"});
    EXPECT_NEAR(w, 1 - 0.1 * (2 + 1 + 2), 1e-3);
    EXPECT_EQ(global_step, 3);
  });
}

}  // namespace
}  // namespace muster::missing_loss_in_trainer
