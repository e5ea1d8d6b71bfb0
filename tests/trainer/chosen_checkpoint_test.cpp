#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using testing::CountingModule, testing::TemporaryFolder;
using Indices = std::vector<int64_t>;

TrainerOptions saving(const fs::path& folder, const ModelCheckpointOptions& saver) {
  return {.callbacks = {std::make_shared<ModelCheckpoint>(saver)},
          .default_root_dir = folder,
          .max_epochs = 1,
          .num_sanity_val_steps = 0};
}

/// Trains four batches and fails in the third.
void fail_in_a_batch(const TrainerOptions& options) {
  CountingModule module(4);
  module.on_batch = [](CountingModule& m) {
    if (m.trained.size() == 3) throw std::runtime_error("mine");
  };
  EXPECT_THROW(Trainer(options).fit(module), std::runtime_error);
}

TEST(ChosenCheckpoint, LastLeavesOutWhatWasWrittenInsideOfABatch) {
  const TemporaryFolder folder;
  const ModelCheckpointOptions saver{
      .dirpath = folder.path() / "mine", .every_n_train_steps = 1, .filename = "{step}", .save_top_k = -1};
  fail_in_a_batch(saving(folder.path(), saver));
  EXPECT_FALSE(fs::exists(folder.path() / "mine/step=3.ckpt"));
  auto by_exception = saver;
  by_exception.every_n_train_steps = 2;
  by_exception.filename = "x";
  by_exception.save_on_exception = true;
  CountingModule fails(4);
  struct Fails : Callback {
    void on_after_backward(Trainer& trainer, TrainerModule&) override {
      if (trainer.global_step() == 1) throw std::runtime_error("mine");
    }
  };
  auto options = saving(folder.path(), by_exception);
  options.callbacks.push_back(std::make_shared<Fails>());
  EXPECT_THROW(Trainer(options).fit(fails), std::runtime_error);
  ASSERT_TRUE(fs::exists(folder.path() / "mine/x.ckpt"));
  CountingModule resumed(4);
  Trainer(saving(folder.path(), saver)).fit(resumed, {.ckpt_path = "last"});
  EXPECT_EQ(resumed.trained, (Indices{2, 3}));  // from step=2.ckpt, not from x.ckpt, which is newer
}

TEST(ChosenCheckpoint, WithoutAnyTrainingStartsAnew) {
  const TemporaryFolder folder;
  for (const char* name : {"last", "hpc"}) {
    CountingModule module(2);
    Trainer(saving(folder.path(), {.save_top_k = 0})).fit(module, {.ckpt_path = name});
    EXPECT_EQ(module.trained, (Indices{0, 1})) << name;
    EXPECT_EQ(testing::thrown_id(
                  [&] { Trainer(saving(folder.path(), {.save_top_k = 0})).validate(module, {.ckpt_path = name}); }),
              "MU450");
  }
}

TEST(ChosenCheckpoint, WeightsAloneCannotBeResumedFromButRead) {  // MU464
  const TemporaryFolder folder;
  const auto options = saving(folder.path(), {.filename = "w", .save_weights_only = true});
  CountingModule module(3);
  Trainer(options).fit(module);
  const auto saved = folder.path() / "checkpoints/w.ckpt";
  ASSERT_TRUE(fs::exists(saved / "model.safetensors"));
  CountingModule other(3);
  EXPECT_EQ(testing::thrown_id([&] { Trainer(options).fit(other, {.ckpt_path = saved}); }), "MU464");
  Trainer(options).validate(other, {.ckpt_path = saved});
  EXPECT_EQ(other.w.item<float>(), module.w.item<float>());
}

}  // namespace
}  // namespace muster
