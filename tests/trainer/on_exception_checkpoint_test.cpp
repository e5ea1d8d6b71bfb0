#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet, testing::TemporaryFolder;

/// Two epochs of three batches; at the start of the second one it may throw.
TrainerOptions two_epochs(const std::filesystem::path& folder, bool throws) {
  LambdaHooks hooks;
  hooks.on_train_epoch_start = [throws](Trainer& trainer, TrainerModule&) {
    if (throws && trainer.current_epoch() == 1) throw std::runtime_error("enough");
  };
  return quiet({.callbacks = {std::make_shared<OnExceptionCheckpoint>(), std::make_shared<LambdaCallback>(hooks)},
                .default_root_dir = folder,
                .max_epochs = 2});
}

void expect_another_start_goes_on(const std::filesystem::path& folder) {
  CountingModule whole(6), first(6), rest(6);
  auto alone = quiet({.max_epochs = 2});
  Trainer(alone).fit(whole);
  const auto saved = folder / "checkpoints" / "on_exception.ckpt";
  {
    Trainer trainer(two_epochs(folder, true));
    EXPECT_THROW(trainer.fit(first), std::runtime_error);
    EXPECT_TRUE(std::filesystem::exists(saved));
  }
  Trainer trainer(two_epochs(folder, false));
  trainer.fit(rest);
  EXPECT_EQ(rest.trained.size(), whole.trained.size() / 2);
  EXPECT_TRUE(torch::equal(rest.w, whole.w));
  trainer.runtime().barrier();
  EXPECT_FALSE(std::filesystem::exists(saved));
}

TEST(OnExceptionCheckpoint, AnotherStartGoesOnAndRemovesIt) {
  const TemporaryFolder folder;
  expect_another_start_goes_on(folder.path());
}

TEST(OnExceptionCheckpoint, TwoRanksSaveOne) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_group;
    expect_another_start_goes_on(folder.path());
  });
}

TEST(OnExceptionCheckpoint, ItLiesWhereOptionsSay) {
  const TemporaryFolder folder;
  const auto saver = std::make_shared<OnExceptionCheckpoint>(
      OnExceptionCheckpointOptions{.dirpath = folder.path() / "here", .filename = "crash"});
  CountingModule module(2);
  module.on_batch = [](CountingModule&) { throw std::runtime_error("enough"); };
  Trainer trainer(quiet({.callbacks = {saver}, .default_root_dir = folder.path()}));
  EXPECT_THROW(trainer.fit(module), std::runtime_error);
  EXPECT_EQ(saver->ckpt_path(), folder.path() / "here" / "crash.ckpt");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "here" / "crash-in-batch.ckpt"));
  EXPECT_EQ(testing::thrown_id([] { OnExceptionCheckpoint({.filename = ""}); }), "MU451");
}

TEST(OnExceptionCheckpoint, AnEvaluationSavesNothing) {
  const TemporaryFolder folder;
  struct Failing : CountingModule {
    void validation_step(torch::Tensor&, int64_t) { throw std::runtime_error("enough"); }
  };
  Failing module;
  Trainer trainer(two_epochs(folder.path(), false));
  EXPECT_THROW(trainer.validate(module), std::runtime_error);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// Runs two epochs of three batches, and throws in one hook.
int64_t start(const std::filesystem::path& folder, const std::string& where) {
  struct Failing : CountingModule {
    explicit Failing(std::string where) : CountingModule(3), where(std::move(where)) {}
    std::string where;
    void at(const char* hook) const {
      if (where == hook) throw std::runtime_error("enough");
    }
    void setup(Stage) override { at("setup"); }
    Optimizers configure_optimizers() override {
      at("configure_optimizers");
      return CountingModule::configure_optimizers();
    }
    void on_fit_start() override { at("on_fit_start"); }
    void on_train_epoch_start() override {
      if (current_epoch() == 1) at("on_train_epoch_start");
    }
    void on_before_optimizer_step(ModuleOptimizer&) override {
      if (current_epoch() == 1) at("on_before_optimizer_step");
    }
  };
  const auto saver =
      std::make_shared<OnExceptionCheckpoint>(OnExceptionCheckpointOptions{.dirpath = folder / "rescued"});
  Failing module(where);
  Trainer trainer(quiet({.callbacks = {saver}, .default_root_dir = folder, .max_epochs = 2}));
  if (where.empty()) trainer.fit(module);
  else EXPECT_THROW(trainer.fit(module), std::runtime_error) << where;
  return std::ssize(module.trained);
}

TEST(OnExceptionCheckpoint, AStartThatFailsEarlyLosesNothing) {
  const TemporaryFolder folder;
  for (const char* where : {"setup", "configure_optimizers", "on_fit_start"}) {
    EXPECT_EQ(start(folder.path(), where), 0);
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "rescued")) << where;
  }
  EXPECT_EQ(start(folder.path(), "on_train_epoch_start"), 3);
  for (const char* where : {"setup", "configure_optimizers", "on_fit_start"}) EXPECT_EQ(start(folder.path(), where), 0);
  EXPECT_EQ(start(folder.path(), "on_before_optimizer_step"), 1);  // inside a batch
  EXPECT_EQ(start(folder.path(), ""), 3) << "the second epoch alone";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "rescued"));
}

}  // namespace
}  // namespace muster
