#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet;

/// Logs what a test wants, where it wants.
struct Logging : CountingModule {
  using CountingModule::CountingModule;
  std::function<void(Logging&, torch::Tensor&, int64_t)> in_training = {}, in_validation = {};
  std::function<void(Logging&)> at_fit_start = {}, at_epoch_end = {};
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    if (in_training) in_training(*this, batch, batch_idx);
    return w * batch.sum();
  }
  void validation_step(torch::Tensor& batch, int64_t batch_idx) {
    if (in_validation) in_validation(*this, batch, batch_idx);
  }
  void on_fit_start() override {
    if (at_fit_start) at_fit_start(*this);
  }
  void on_train_epoch_end() override {
    if (at_epoch_end) at_epoch_end(*this);
  }
};

Metrics fit(Logging& module) {
  Trainer trainer(quiet({.max_epochs = 1}));
  trainer.fit(module);
  return trainer.callback_metrics();
}

TEST(LogBook, LevelsFollowFromTheHook) {
  Logging module(4, 3);
  module.in_training = [](Logging& m, torch::Tensor& batch, int64_t) {
    m.log("step", batch.sum());
    m.log("both", batch.sum(), {.on_epoch = true});
    m.log("largest", batch.sum(), {.on_epoch = true, .on_step = false, .reduce_fx = "max"});
    m.log("total", batch.sum(), {.on_epoch = true, .on_step = false, .reduce_fx = "sum"});
  };
  module.in_validation = [](Logging& m, torch::Tensor& batch, int64_t) { m.log("val", batch.sum()); };
  module.at_epoch_end = [](Logging& m) { m.log("end", 7.0); };
  const Metrics wanted = {{"both", 1.5},  {"both_epoch", 1.5}, {"both_step", 3}, {"end", 7},
                          {"largest", 3}, {"step", 3},         {"total", 6},     {"val", 1}};
  EXPECT_EQ(fit(module), wanted);
}

TEST(LogBook, AMeanIsWeightedByBatchSize) {
  struct Sized : TrainerModule {
    std::optional<int64_t> size = {};
    void test_step(torch::Tensor& batch, int64_t) { log("mean", batch.mean(), {.batch_size = size}); }
  };
  Sized module;
  Trainer trainer(quiet({}));
  const auto loader = DataLoader([](int64_t i) { return torch::tensor(static_cast<double>(i)); }, 5, {.batch_size = 2});
  EXPECT_DOUBLE_EQ(trainer.test(module, loader)[0].at("mean"), 2.0);
  module.size = 1;
  EXPECT_NEAR(trainer.test(module, loader)[0].at("mean"), 7.0 / 3, 1e-9);
  const auto several = trainer.test(module, std::vector{loader, loader});
  ASSERT_EQ(several.size(), 2u);
  EXPECT_TRUE(several[1].contains("mean/dataloader_idx_1"));
  EXPECT_FALSE(several[1].contains("mean/dataloader_idx_0"));
}

TEST(LogBook, TheSameNameInOneBatchAccumulates) {
  Logging module(1);
  module.in_training = [](Logging& m, torch::Tensor&, int64_t) {
    m.log("x", 1.0, {.on_epoch = true});
    m.log("x", 3.0, {.on_epoch = true});
  };
  const auto metrics = fit(module);
  EXPECT_DOUBLE_EQ(metrics.at("x_step"), 2);
  EXPECT_DOUBLE_EQ(metrics.at("x_epoch"), 2);
}

TEST(LogBook, NothingIsLoggedWhereItCannotBe) {  // MU441
  const auto id = [](const std::function<void(Logging&)>& prepare) {
    Logging module(1);
    prepare(module);
    return testing::thrown_id([&] { fit(module); });
  };
  EXPECT_EQ(id([](Logging& m) { m.at_fit_start = [](Logging& l) { l.log("x", 1.0); }; }), "MU441");
  EXPECT_EQ(id([](Logging& m) { m.at_epoch_end = [](Logging& l) { l.log("x", 1.0, {.on_step = true}); }; }), "MU441");
  EXPECT_EQ(id([](Logging& m) {
              m.in_training = [](Logging& l, torch::Tensor&, int64_t) {
                l.log("x", 1.0, {.on_epoch = false, .on_step = false});
              };
            }),
            "MU441");
}

TEST(LogBook, ValuesAndNamesThatCannotBeLoggedAreRefused) {  // MU442
  const auto id = [](const std::function<void(Logging&)>& logs) {
    Logging module(1);
    module.in_training = [&](Logging& m, torch::Tensor&, int64_t) { logs(m); };
    return testing::thrown_id([&] { fit(module); });
  };
  EXPECT_EQ(id([](Logging& m) { m.log("x", torch::ones({2})); }), "MU442");
  EXPECT_EQ(id([](Logging& m) { m.log("x/dataloader_idx_1", 1.0); }), "MU442");
  EXPECT_EQ(id([](Logging& m) {
              m.log("x", 1.0);
              m.log("x", 1.0, {.reduce_fx = "sum"});
            }),
            "MU442");
}

TEST(LogBook, SynchronizedValuesOfAStepAreThoseOfAllRanks) {
  testing::as_ranks(2, [] {
    Logging module(2);
    double rank = -1;
    module.in_training = [&](Logging& m, torch::Tensor&, int64_t) {
      rank = static_cast<double>(m.trainer().runtime().rank());
      m.log("mean", rank, {.sync_dist = true});
      m.log("sum", rank + 1, {.reduce_fx = "sum", .sync_dist = true});
      m.log("largest", torch::full({1}, rank), {.reduce_fx = "max", .sync_dist = true});
      m.log("own", torch::full({}, rank));
    };
    const auto metrics = fit(module);
    const Metrics wanted = {{"largest", 1}, {"mean", 0.5}, {"own", rank}, {"sum", 3}};
    EXPECT_EQ(metrics, wanted);
  });
}

TEST(LogBook, EpochValuesAreThoseOfAllSamplesOfAllRanks) {
  testing::as_ranks(2, [] {
    Logging module(1, 5);
    module.in_validation = [](Logging& m, torch::Tensor& batch, int64_t) {
      const auto rank = m.trainer().runtime().rank();
      m.log("mean", batch.mean());
      m.log("own", static_cast<double>(rank), {.sync_dist = false});
      m.log("count", 1.0, {.reduce_fx = "sum"});
      m.log(rank == 0 ? "a" : "b", 3.0);
    };
    Trainer trainer(quiet({.max_epochs = 2}));
    trainer.fit(module);
    const auto& metrics = trainer.callback_metrics();
    EXPECT_DOUBLE_EQ(metrics.at("mean"), 2.0);  // of 0, 1, 2, 3, 4: nothing counts twice
    EXPECT_DOUBLE_EQ(metrics.at("count"), 5);
    EXPECT_DOUBLE_EQ(metrics.at("own"), trainer.runtime().rank());
    EXPECT_DOUBLE_EQ(metrics.at("a"), 3);  // logged by rank 0 only
    EXPECT_DOUBLE_EQ(metrics.at("b"), 3);
  });
}

}  // namespace
}  // namespace muster
