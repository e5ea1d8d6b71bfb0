#include <filesystem>
#include <memory>
#include <stdexcept>

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
  EXPECT_TRUE(std::filesystem::exists(saver->ckpt_path()));
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

}  // namespace
}  // namespace muster
