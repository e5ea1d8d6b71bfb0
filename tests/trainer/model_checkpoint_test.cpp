#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"

namespace muster {
namespace {

using testing::CountingModule, testing::MeasuredModule;
using Names = std::set<std::string>;

Names names_in(const std::filesystem::path& folder) {
  Names names;
  if (!std::filesystem::exists(folder)) return names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

/// The names left by a run of so many epochs.
Names saved(ModelCheckpointOptions options, TrainerOptions how, std::vector<double> values = {1}, int64_t batches = 2) {
  const testing::TemporaryFolder folder;
  options.dirpath = folder.path() / "kept";
  how.callbacks = {std::make_shared<ModelCheckpoint>(options)};
  how.num_sanity_val_steps = 0;
  MeasuredModule module(std::move(values), batches);
  Trainer(how).fit(module);
  return names_in(options.dirpath);
}

TEST(ModelCheckpoint, TheNewestOrAllOrNoneAreKept) {
  EXPECT_EQ(saved({}, {.max_epochs = 3}), (Names{"epoch=2-step=6.ckpt"}));
  EXPECT_EQ(saved({.save_top_k = -1}, {.max_epochs = 2}), (Names{"epoch=0-step=2.ckpt", "epoch=1-step=4.ckpt"}));
  EXPECT_EQ(saved({.save_top_k = 0}, {.max_epochs = 2}), Names());
  EXPECT_EQ(saved({.save_last = true}, {.max_epochs = 2}), (Names{"epoch=1-step=4.ckpt", "last.ckpt"}));
}

TEST(ModelCheckpoint, TheBestAreKept) {
  const std::vector<double> values = {3, 2, 4, 1, 5};
  EXPECT_EQ(saved({.filename = "{epoch}", .monitor = "v", .save_top_k = 2}, {.max_epochs = 5}, values),
            (Names{"epoch=1.ckpt", "epoch=3.ckpt"}));
  EXPECT_EQ(saved({.filename = "{epoch}", .mode = "max", .monitor = "v", .save_top_k = 2}, {.max_epochs = 5}, values),
            (Names{"epoch=2.ckpt", "epoch=4.ckpt"}));
}

TEST(ModelCheckpoint, TriggersCountEpochsOrSteps) {
  EXPECT_EQ(saved({.every_n_epochs = 2, .filename = "{epoch}", .save_top_k = -1}, {.max_epochs = 4}),
            (Names{"epoch=1.ckpt", "epoch=3.ckpt"}));
  EXPECT_EQ(saved({.every_n_train_steps = 3, .filename = "{step}", .save_top_k = -1}, {.max_epochs = 2}, {1}, 4),
            (Names{"step=3.ckpt", "step=6.ckpt"}));
  EXPECT_EQ(saved({.every_n_train_steps = 2, .filename = "{step}", .save_top_k = -1},
                  {.accumulate_grad_batches = 2, .max_epochs = 1}, {1}, 8),
            (Names{"step=2.ckpt", "step=4.ckpt"}));
  EXPECT_EQ(saved({.filename = "{step}", .save_top_k = -1}, {.max_epochs = 2, .val_check_interval = 0.5}, {1}, 4),
            (Names{"step=2.ckpt", "step=4.ckpt", "step=6.ckpt", "step=8.ckpt"}));
}

TEST(ModelCheckpoint, TimeIsATriggerToo) {
  const auto every = [](std::chrono::microseconds interval) {
    return saved({.filename = "{step}", .save_top_k = -1, .train_time_interval = interval}, {.max_epochs = 1}, {1}, 3);
  };
  EXPECT_EQ(every(std::chrono::microseconds(1)), (Names{"step=1.ckpt", "step=2.ckpt", "step=3.ckpt"}));
  EXPECT_EQ(every(std::chrono::hours(1)), Names());
}

TEST(ModelCheckpoint, AsynchronousSavesLeaveTheSame) {
  const auto left = [](bool asynchronous) {
    return saved(
        {.asynchronous = asynchronous, .filename = "{epoch}", .monitor = "v", .save_last = true, .save_top_k = 2},
        {.max_epochs = 5}, {3, 2, 4, 1, 5});
  };
  EXPECT_EQ(left(true), left(false));
  EXPECT_EQ(left(true), (Names{"epoch=1.ckpt", "epoch=3.ckpt", "last.ckpt"}));
}

TEST(ModelCheckpoint, NamesAreMadeOfMetrics) {
  const Metrics metrics = {{"epoch", 1}, {"v", 2}};
  const auto name = [&](const char* pattern, bool insert = true) {
    return ModelCheckpoint({.auto_insert_metric_name = insert, .filename = pattern}).format_checkpoint_name(metrics);
  };
  EXPECT_EQ(name("{epoch:02d}-{v:.2f}"), "epoch=01-v=2.00");
  EXPECT_EQ(name("e={epoch}-x{v:.1f}", false), "e=1-x2.0");
  EXPECT_EQ(name("{missing}-{epoch}"), "missing=0-epoch=1");
  EXPECT_EQ(testing::thrown_id([&] { name("{epoch"); }), "MU451");
  EXPECT_EQ(testing::thrown_id([&] { name("{epoch:%n}"); }), "MU451");
  EXPECT_EQ(saved({.filename = "const", .save_top_k = -1}, {.max_epochs = 3}),
            (Names{"const-v1.ckpt", "const-v2.ckpt", "const.ckpt"}));
}

TEST(ModelCheckpoint, OptionsThatCannotWorkAreRefused) {  // MU451
  for (const auto& options :
       {ModelCheckpointOptions{.save_top_k = -2}, ModelCheckpointOptions{.save_top_k = 2},
        ModelCheckpointOptions{.every_n_epochs = -1},
        ModelCheckpointOptions{.every_n_epochs = 1, .every_n_train_steps = 1},
        ModelCheckpointOptions{.every_n_epochs = 1, .train_time_interval = std::chrono::minutes(1)},
        ModelCheckpointOptions{.train_time_interval = std::chrono::minutes(0)}})
    EXPECT_EQ(testing::thrown_id([&] { ModelCheckpoint{options}; }), "MU451");
  EXPECT_EQ(testing::thrown_id([] { saved({.monitor = "lost"}, {.max_epochs = 1}); }), "MU449");
}

TEST(ModelCheckpoint, BestAndLastNameCheckpoints) {  // MU450, MU446
  const testing::TemporaryFolder folder;
  MeasuredModule module({1}, 2);
  Trainer trainer({.default_root_dir = folder.path(), .max_epochs = 1});
  EXPECT_EQ(testing::thrown_id([&] { trainer.save_checkpoint(folder.path() / "x"); }), "MU446");
  EXPECT_EQ(testing::thrown_id([&] { trainer.validate(module, {.ckpt_path = "best"}); }), "MU450");
  trainer.fit(module);
  const auto trained = module.w.item<float>();
  torch::NoGradGuard guard;
  module.w.fill_(9);
  trainer.validate(module, {.ckpt_path = "best"});
  EXPECT_EQ(module.w.item<float>(), trained);
}

/// What a run leaves behind: the weight, and where it stands.
std::tuple<float, int64_t, int64_t, std::vector<int64_t>> train(const std::filesystem::path& folder,
                                                                const TrainerOptions& given, FitOptions fit = {}) {
  auto options = given;
  options.default_root_dir = folder;
  MeasuredModule module({1}, 4);
  module.make_optimizers = [](CountingModule& m) -> Optimizers { return torch::optim::AdamW(m.parameters(), 0.1); };
  Trainer trainer(options);
  trainer.fit(module, fit);
  return {module.w.item<float>(), trainer.current_epoch(), trainer.global_step(), module.trained};
}

TEST(ModelCheckpoint, ResumedIsAsUninterrupted) {
  const testing::TemporaryFolder folder;
  const auto whole = train(folder.path() / "whole", {.max_epochs = 3});
  train(folder.path() / "a", {.max_epochs = 1});
  const auto after_epoch =
      train(folder.path() / "b", {.max_epochs = 3}, {.ckpt_path = folder.path() / "a/checkpoints/epoch=0-step=4.ckpt"});
  EXPECT_EQ(std::get<0>(after_epoch), std::get<0>(whole));
  EXPECT_EQ(std::get<2>(after_epoch), 12);
  const auto saver =
      std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.every_n_train_steps = 6, .filename = "{step}"});
  train(folder.path() / "c", {.callbacks = {saver}, .max_steps = 7});
  const auto in_epoch = train(folder.path() / "d", {.max_epochs = 3}, {.ckpt_path = saver->best_model_path()});
  EXPECT_EQ(std::get<0>(in_epoch), std::get<0>(whole));
  EXPECT_EQ(std::get<3>(in_epoch), (std::vector<int64_t>{2, 3, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace muster
