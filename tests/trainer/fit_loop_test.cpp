#include <cmath>
#include <filesystem>
#include <stdexcept>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "trainer/boring_model.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::BoringModel, testing::CountingModule, testing::quiet;
using Indices = std::vector<int64_t>;

TEST(FitLoop, BoringModelTrainsValidatesTestsAndPredicts) {
  const testing::TemporaryFolder folder;
  torch::manual_seed(1);
  BoringModel model;
  Trainer trainer({.default_root_dir = folder.path(), .max_epochs = 1});
  const auto before = model.layer->weight.detach().clone();
  trainer.fit(model);
  EXPECT_FALSE(model.layer->weight.detach().equal(before));
  EXPECT_EQ(trainer.current_epoch(), 1);
  EXPECT_EQ(trainer.global_step(), 64);
  EXPECT_TRUE(trainer.callback_metrics().contains("train_loss_epoch"));
  EXPECT_TRUE(trainer.callback_metrics().contains("x"));
  const auto metrics = trainer.test(model);
  ASSERT_EQ(metrics.size(), 1u);
  EXPECT_TRUE(std::isfinite(metrics[0].at("y")));
  const std::vector<torch::Tensor> predictions = trainer.predict(model);
  EXPECT_EQ(predictions.size(), 64u);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "checkpoints/epoch=0-step=64.ckpt"));
}

TEST(FitLoop, StepsEndWithinAnEpochAndAgainIsDoneAtOnce) {
  CountingModule module(5);
  Trainer trainer(quiet({.max_steps = 7}));
  trainer.fit(module);
  EXPECT_EQ(module.trained, (Indices{0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(trainer.current_epoch(), 2);
  trainer.fit(module);
  EXPECT_EQ(module.trained.size(), 7u);
  CountingModule none(5);
  Trainer(quiet({.max_epochs = 0})).fit(none);
  EXPECT_TRUE(none.trained.empty());
}

TEST(FitLoop, AStopWaitsForTheMinimaAndValidatesFirst) {
  const auto run = [](TrainerOptions options) {
    CountingModule module(5);
    module.on_batch = [](CountingModule& m) { m.trainer().stop(); };
    options.max_epochs = 10;
    Trainer trainer(quiet(options));
    trainer.fit(module);
    return std::tuple(std::ssize(module.trained), trainer.current_epoch(), module.validated_after.back());
  };
  EXPECT_EQ(run({}), std::tuple(1, 1, 1));
  EXPECT_EQ(run({.min_epochs = 2}), std::tuple(10, 2, 10));
  EXPECT_EQ(run({.min_steps = 7}), std::tuple(7, 2, 7));
}

TEST(FitLoop, ValidationRunsAsOftenAsAsked) {
  const auto validated = [](TrainerOptions options, int64_t epochs) {
    CountingModule module(10);
    options.max_epochs = epochs;
    Trainer(quiet(options)).fit(module);
    return module.validated_after;
  };
  EXPECT_EQ(validated({}, 2), (Indices{10, 20}));
  EXPECT_EQ(validated({.val_check_interval = 0.25}, 1), (Indices{2, 4, 6, 8, 10}));
  EXPECT_EQ(validated({.val_check_interval = 0.3}, 1), (Indices{3, 6, 9}));
  EXPECT_EQ(validated({.val_check_interval = 4}, 2), (Indices{4, 8, 14, 18}));
  EXPECT_EQ(validated({.check_val_every_n_epoch = std::nullopt, .val_check_interval = 4}, 3),
            (Indices{4, 8, 12, 16, 20, 24, 28}));
  EXPECT_EQ(validated({.check_val_every_n_epoch = std::nullopt, .val_check_interval = 15}, 3), (Indices{15, 30}));
  EXPECT_EQ(validated({.check_val_every_n_epoch = 2}, 3), (Indices{20}));
  EXPECT_EQ(validated({.check_val_every_n_epoch = 2, .val_check_interval = 5}, 3), (Indices{15, 20}));
  EXPECT_EQ(validated({.limit_val_batches = 0}, 1), Indices());
}

TEST(FitLoop, LimitsTakeFewerBatches) {
  const auto trained = [](const BatchLimit& limit) {
    CountingModule module(10);
    Trainer(quiet({.limit_train_batches = limit, .max_epochs = 1})).fit(module);
    return std::ssize(module.trained);
  };
  EXPECT_EQ(trained(1), 1);
  EXPECT_EQ(trained(1.0), 10);
  EXPECT_EQ(trained(0.35), 3);
  EXPECT_EQ(trained(0), 0);
  EXPECT_EQ(testing::thrown_id([&] { trained(0.05); }), "MU445");
}

TEST(FitLoop, AFastRunTakesFewBatchesAndWritesNothing) {
  const testing::TemporaryFolder folder;
  CountingModule module(10, 5);
  Trainer trainer({.default_root_dir = folder.path(), .fast_dev_run = 3});
  trainer.fit(module);
  EXPECT_EQ(module.trained, (Indices{0, 1, 2}));
  EXPECT_EQ(module.validated_after, (Indices{3}));
  EXPECT_EQ(module.sanity_batches, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(FitLoop, TheSanityCheckTakesAsManyBatchesAsAsked) {
  const auto batches = [](int64_t steps) {
    CountingModule module(2, 5);
    Trainer trainer({.enable_checkpointing = false, .max_epochs = 1, .num_sanity_val_steps = steps});
    trainer.fit(module);
    return module.sanity_batches;
  };
  EXPECT_EQ(batches(2), 2);
  EXPECT_EQ(batches(-1), 5);
  EXPECT_EQ(batches(0), 0);
}

TEST(FitLoop, LoadersAreMadeAnewAsOftenAsAsked) {
  const auto loads = [](int64_t every) {
    CountingModule module(2);
    Trainer(quiet({.max_epochs = 4, .reload_dataloaders_every_n_epochs = every})).fit(module);
    return std::pair(module.train_loads, module.val_loads);
  };
  EXPECT_EQ(loads(0), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_EQ(loads(1), std::pair(int64_t{4}, int64_t{4}));
  EXPECT_EQ(loads(2), std::pair(int64_t{2}, int64_t{2}));
}

struct Skipping : CountingModule {
  EpochFlow on_train_batch_start(torch::Tensor&, int64_t batch_idx) {
    return batch_idx == 2 ? EpochFlow::skip_rest : EpochFlow::continue_epoch;
  }
};

TEST(FitLoop, AHookSkipsTheRestOfAnEpoch) {
  Skipping module;
  Trainer(quiet({.max_epochs = 2})).fit(module);
  EXPECT_EQ(module.trained, (Indices{0, 1, 0, 1}));
}

struct Noted : Callback {
  std::vector<std::string> calls;
  void on_exception(Trainer&, TrainerModule&, const std::exception_ptr&) override { calls.emplace_back("exception"); }
  void on_train_end(Trainer&, TrainerModule&) override { calls.emplace_back("train end"); }
  void teardown(Trainer&, TrainerModule&, Stage) override { calls.emplace_back("teardown"); }
};

TEST(FitLoop, AnExceptionTearsDownAndLeavesTheModuleUsable) {
  const auto noted = std::make_shared<Noted>();
  CountingModule module(5);
  module.on_batch = [](CountingModule& m) {
    if (m.trained.size() == 2) throw std::runtime_error("mine");
  };
  Trainer trainer(quiet({.callbacks = {noted}, .max_epochs = 1}));
  EXPECT_THROW(trainer.fit(module), std::runtime_error);
  EXPECT_EQ(noted->calls, (std::vector<std::string>{"exception", "teardown"}));
  EXPECT_EQ(testing::thrown_id([&] { module.trainer(); }), "MU446");
  trainer.fit(module);
  EXPECT_EQ(trainer.current_epoch(), 1);
}

TEST(FitLoop, WithoutALoaderNothingRuns) {  // MU444
  struct Bare : TrainerModule {
    torch::Tensor training_step(torch::Tensor batch, int64_t) { return batch; }
    void validation_step(torch::Tensor&, int64_t) {}
  };
  Bare module;
  Trainer trainer(quiet({}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU444");
  EXPECT_EQ(testing::thrown_id([&] { trainer.validate(module); }), "MU444");
}

struct WrongBatch : Callback {
  void on_train_batch_start(Trainer&, TrainerModule&, const BatchView& batch, BatchPlace) override {
    EXPECT_EQ(batch.size(), 1);
    batch.get<torch::data::Example<>>();
  }
};

TEST(FitLoop, ACallbackAsksForTheBatchByItsType) {  // MU447
  CountingModule module;
  Trainer trainer(quiet({.callbacks = {std::make_shared<WrongBatch>()}}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU447");
}

struct Keyed : Callback {
  State state_dict() const override { return State::Map{{"n", 1}}; }
};

TEST(FitLoop, TwoCallbacksOfOneStateKeyAreRefused) {  // MU452
  CountingModule module;
  Trainer trainer(quiet({.callbacks = {std::make_shared<Keyed>(), std::make_shared<Keyed>()}}));
  EXPECT_EQ(testing::thrown_id([&] { trainer.fit(module); }), "MU452");
}

struct Pair : TrainerModule {
  torch::Tensor w = register_parameter("w", torch::ones({}));
  std::vector<std::pair<double, double>> seen = {};
  torch::Tensor training_step(std::tuple<torch::Tensor&, torch::Tensor&>& batch, int64_t) {
    auto& [a, b] = batch;
    seen.emplace_back(a.item<double>(), b.item<double>());
    return w * a.sum();
  }
  Optimizers configure_optimizers() override { return torch::optim::SGD(parameters(), 0.1); }
};

TEST(FitLoop, LoadersSideBySideCycleUntilTheLongestEnds) {
  Pair module;
  Trainer(quiet({.max_epochs = 1})).fit(module, std::tuple(CountingModule::numbers(2), CountingModule::numbers(3)));
  EXPECT_EQ(module.seen, (std::vector<std::pair<double, double>>{{0, 0}, {1, 1}, {0, 2}}));
}

}  // namespace
}  // namespace muster
