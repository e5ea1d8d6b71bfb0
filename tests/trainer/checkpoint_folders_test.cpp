// Folders of a ModelCheckpoint: names, what others left there, and folders that cannot be written.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster::checkpoint_folders {
namespace {

namespace fs = std::filesystem;
using testing::CountingModule, testing::MeasuredModule;
using Names = std::set<std::string>;

Names names_in(const fs::path& folder) {
  Names names;
  if (!fs::exists(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

struct Fit {
  FitOptions from = {};
  TrainerOptions options = {};
  ModelCheckpointOptions saver = {};
  bool validates = true;
};

/// Two batches per epoch; returns the trained epochs.
int64_t fit(const fs::path& root, Fit run, std::vector<double> values = {1}) {
  run.options.callbacks.push_back(std::make_shared<ModelCheckpoint>(run.saver));
  run.options.default_root_dir = root;
  run.options.enable_model_summary = run.options.enable_progress_bar = false;
  run.options.num_sanity_val_steps = 0;
  if (!run.options.max_epochs) run.options.max_epochs = 1;
  MeasuredModule module(std::move(values), 2);
  Trainer trainer(run.options);
  if (run.validates) trainer.fit(module, CountingModule::numbers(2), CountingModule::numbers(1), run.from);
  else trainer.fit(module, CountingModule::numbers(2), run.from);
  return std::ssize(module.trained) / 2;
}

TEST(CheckpointFolders, WithoutValidationEpochsAreSavedWhateverItsInterval) {
  const testing::TemporaryFolder folder;
  TrainerOptions half{.val_check_interval = 0.5}, second{.check_val_every_n_epoch = 2}, timed;
  timed.val_check_interval = std::chrono::hours(1);
  for (const auto& [name, options] :
       {std::pair("half", half), std::pair("second", second), std::pair("timed", timed)}) {
    fit(folder.path() / name, {.options = options, .validates = false});
    EXPECT_EQ(names_in(folder.path() / name / "checkpoints"), Names{"epoch=0-step=2.ckpt"}) << name;
  }
}

TEST(CheckpointFolders, LastFindsNamesWithSlashes) {
  const testing::TemporaryFolder folder;
  fit(folder.path(), {.saver = {.filename = "{val/loss:.2f}-{epoch}"}});
  EXPECT_EQ(names_in(folder.path() / "checkpoints/val"), Names{"loss=0.00-epoch=0.ckpt"});
  EXPECT_EQ(fit(folder.path(), {.from = {.ckpt_path = "last"}, .options = {.max_epochs = 3}}), 2);
}

TEST(CheckpointFolders, AnotherRunsLastIsNotReplaced) {
  const testing::TemporaryFolder folder;
  const Fit run{.saver = {.filename = "{epoch}", .save_last = true}};
  fit(folder.path(), run);
  fit(folder.path(), run);
  EXPECT_EQ(names_in(folder.path() / "checkpoints"),
            (Names{"epoch=0-v1.ckpt", "epoch=0.ckpt", "last-v1.ckpt", "last.ckpt"}));
  auto resumed = run;
  resumed.from.ckpt_path = "last";
  resumed.options.max_epochs = 3;
  EXPECT_EQ(fit(folder.path(), resumed), 2);  // it goes on with its own
  EXPECT_EQ(names_in(folder.path() / "checkpoints"),
            (Names{"epoch=0.ckpt", "epoch=2.ckpt", "last-v1.ckpt", "last.ckpt"}));
}

TEST(CheckpointFolders, WhatOthersLeftThereStays) {
  const testing::TemporaryFolder folder;
  const auto kept = folder.path() / "checkpoints";
  fs::create_directories(kept / "epoch=1-step=4.ckpt");
  std::ofstream(kept / "epoch=1-step=4.ckpt/notes.txt") << "mine";
  std::ofstream(kept / "epoch=0-step=2.ckpt") << "a file of Python's";
  std::ofstream(kept / "last.ckpt") << "not a checkpoint";
  EXPECT_EQ(fit(folder.path(), {.options = {.max_epochs = 2}, .saver = {.save_top_k = -1}}), 2);
  EXPECT_EQ(names_in(kept), (Names{"epoch=0-step=2-v1.ckpt", "epoch=0-step=2.ckpt", "epoch=1-step=4-v1.ckpt",
                                   "epoch=1-step=4.ckpt", "last.ckpt"}));
  EXPECT_TRUE(fs::exists(kept / "epoch=1-step=4.ckpt/notes.txt"));
  EXPECT_EQ(fit(folder.path(), {.from = {.ckpt_path = "last"}, .options = {.max_epochs = 3}}), 1);
}

TEST(CheckpointFolders, TheStepMayBeTheMonitor) {
  const testing::TemporaryFolder folder;
  fit(folder.path(),
      {.options = {.max_epochs = 3},
       .saver = {.every_n_train_steps = 1, .filename = "{step}", .mode = "max", .monitor = "step", .save_top_k = 2}});
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), (Names{"step=5.ckpt", "step=6.ckpt"}));
}

TEST(CheckpointFolders, NaNIsWorseThanAnyNumber) {
  const testing::TemporaryFolder folder;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  fit(folder.path() / "a", {.options = {.max_epochs = 4}, .saver = {.filename = "{epoch}", .monitor = "v"}},
      {nan, 3, nan, 5});
  EXPECT_EQ(names_in(folder.path() / "a/checkpoints"), Names{"epoch=1.ckpt"});
  fit(folder.path() / "b", {.options = {.max_epochs = 2}, .saver = {.filename = "{epoch}-{v:d}", .monitor = "v"}},
      {nan, nan});
  EXPECT_EQ(names_in(folder.path() / "b/checkpoints"), Names{"epoch=0-v=nan.ckpt"});
  fit(folder.path() / "c",
      {.options = {.max_epochs = 4}, .saver = {.filename = "{epoch}", .monitor = "v", .save_top_k = 2}}, {2, 2, 2, 1});
  EXPECT_EQ(names_in(folder.path() / "c/checkpoints"), (Names{"epoch=1.ckpt", "epoch=3.ckpt"}));
}

TEST(CheckpointFolders, AFolderThatCannotBeWrittenIsAnErrorOfAllRanks) {
  const testing::InheritedFolder folder;
  testing::as_ranks(2, [&] {
    const Accelerator keeps_the_meeting_place;
    if (keeps_the_meeting_place.is_main_process()) std::ofstream(folder.path() / "file") << "no folder";
    keeps_the_meeting_place.wait_for_everyone();
    for (const bool asynchronous : {false, true}) {
      Fit run{.saver = {.asynchronous = asynchronous, .dirpath = folder.path() / "file/kept"}};
      EXPECT_NE(testing::thrown_id([&] { fit(folder.path(), run); }), "no error") << asynchronous;
      EXPECT_NO_THROW(fit(folder.path() / std::to_string(asynchronous), {}));  // the ranks still find each other
    }
  });
}

}  // namespace
}  // namespace muster::checkpoint_folders
