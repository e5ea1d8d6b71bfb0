// When the validation before training runs, and that it leaves no trace.
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::sanity_check {
namespace {

using testing::CountingModule, testing::quiet;

TrainerOptions checked(TrainerOptions options) {
  options = quiet(std::move(options));
  options.num_sanity_val_steps = 2;
  return options;
}

/// Batches of the sanity check of a run that resumes where a run of these options saved last.
int64_t batches_after(const ModelCheckpointOptions& saver, TrainerOptions before) {
  const testing::TemporaryFolder folder;
  before.callbacks = {std::make_shared<ModelCheckpoint>(saver)};
  before.default_root_dir = folder.path();
  before = checked(before);
  before.enable_checkpointing = true;
  CountingModule first(4, 3);
  Trainer(before).fit(first);
  CountingModule second(4, 3);
  auto after = checked({.default_root_dir = folder.path(), .max_epochs = 2});
  Trainer trainer(after);
  trainer.fit(second, {.ckpt_path = "last"});
  EXPECT_EQ(trainer.global_step(), 8);
  EXPECT_LT(second.trained.size(), 8U);
  return second.sanity_batches;
}

TEST(SanityCheck, RunsAgainUnlessAnEpochGoesOn) {
  EXPECT_EQ(batches_after({}, {.max_epochs = 1}), 2);
  EXPECT_EQ(batches_after({}, {.limit_val_batches = 0, .max_epochs = 1}), 2);
  EXPECT_EQ(batches_after({.every_n_train_steps = 3}, {.max_epochs = 1}), 0);
}

TEST(SanityCheck, AResumedRunMayLeaveValidationOut) {
  const testing::TemporaryFolder folder;
  auto options = checked({.default_root_dir = folder.path(), .max_epochs = 1});
  options.enable_checkpointing = true;
  CountingModule first(4, 3), second(4, 3);
  Trainer(options).fit(first);
  options.limit_val_batches = 0;
  options.max_epochs = 2;
  Trainer(options).fit(second, {.ckpt_path = "last"});
  EXPECT_EQ(second.trained.size(), 4U);
  EXPECT_TRUE(second.validated_after.empty());
}

TEST(SanityCheck, ChangesNeitherRandomNumbersNorMetrics) {
  struct Drawing : CountingModule {
    using CountingModule::CountingModule;
    double drawn = 0;
    std::size_t metrics = 9;
    void validation_step(torch::Tensor&, int64_t) { log("v", torch::rand({})); }
    void on_train_start() override {
      metrics = trainer().callback_metrics().size();
      drawn = torch::rand({}).item<double>();
    }
  };
  const auto drawn_with = [](const TrainerOptions& options) {
    torch::manual_seed(4);
    Drawing module(1, 2);
    Trainer(options).fit(module);
    EXPECT_EQ(module.metrics, 0U);
    return module.drawn;
  };
  EXPECT_EQ(drawn_with(checked({.max_epochs = 1})), drawn_with(quiet({.max_epochs = 1})));
}

}  // namespace
}  // namespace muster::sanity_check
