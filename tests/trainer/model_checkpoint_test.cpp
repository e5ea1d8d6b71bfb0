#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "muster/accelerator.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/interrupted_run.h"

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

/// The names in a folder of checkpoints, and the global_step of each.
std::map<std::string, int64_t> steps_in(const std::filesystem::path& folder) {
  std::map<std::string, int64_t> steps;
  for (const auto& name : names_in(folder))
    steps[name] = Checkpoint(folder / name).shared_entry("trainer")->at("global_step").integer();
  return steps;
}

ModelCheckpointOptions saver_of(const nlohmann::json& given) {
  ModelCheckpointOptions options{.filename = "{step}"};
  const auto set = [&](const char* name, auto& field) {
    if (given.contains(name)) field = given.at(name).get<std::remove_reference_t<decltype(field)>>();
  };
  const auto set_optional = [&]<class T>(const char* name, std::optional<T>& field) {
    if (given.contains(name)) field = given.at(name).get<T>();
  };
  set("monitor", options.monitor);
  set("save_last", options.save_last);
  set("save_on_exception", options.save_on_exception);
  set("save_top_k", options.save_top_k);
  set_optional("every_n_epochs", options.every_n_epochs);
  set_optional("every_n_train_steps", options.every_n_train_steps);
  set_optional("save_on_train_epoch_end", options.save_on_train_epoch_end);
  if (given.contains("train_time_interval_us"))
    options.train_time_interval = std::chrono::microseconds(given.at("train_time_interval_us").get<int64_t>());
  return options;
}

TrainerOptions loops_of(const nlohmann::json& given) {
  TrainerOptions options{.max_epochs = 3, .num_sanity_val_steps = 0};
  options.enable_model_summary = options.enable_progress_bar = false;
  if (given.contains("limit_val_batches")) options.limit_val_batches = given.at("limit_val_batches").get<int64_t>();
  if (given.contains("val_check_interval")) options.val_check_interval = given.at("val_check_interval").get<double>();
  if (given.contains("check_val_every_n_epoch"))
    options.check_val_every_n_epoch = given.at("check_val_every_n_epoch").get<int64_t>();
  return options;
}

/// What a case of checkpoint_names.py leaves behind.
std::map<std::string, int64_t> left_by(const nlohmann::json& one) {
  static const std::vector<double> values = {3, 2, 4, 1, 5, 6, 0.5};
  struct AsTheCaseWants {};
  const testing::QuickFolder folder;
  auto saver = saver_of(one.at("callback"));
  saver.dirpath = folder.path();
  auto loops = loops_of(one.at("trainer"));
  loops.callbacks = {std::make_shared<ModelCheckpoint>(saver)};
  MeasuredModule module(values, 4);
  const auto raises_at = one.at("raises_at").get<std::size_t>();
  module.on_batch = [&](CountingModule& m) {
    if (m.trained.size() == raises_at) throw AsTheCaseWants();
    m.log("t", values[m.trained.size() % values.size()]);
  };
  try {
    Trainer(loops).fit(module);
  } catch (const AsTheCaseWants&) {
    EXPECT_GT(raises_at, 0U);
  }
  return steps_in(folder.path());
}

TEST(ModelCheckpoint, LeavesWhatLightningLeaves) {
  const auto all = nlohmann::json::parse(std::ifstream(MUSTER_SOURCE_DIR "/tests/trainer/checkpoint_names.json"));
  const auto& cases = all.at("cases");
  for (std::size_t i = 0; i < cases.size(); i += static_cast<std::size_t>(testing::stride(4))) {
    const auto& one = cases[i];
    auto wanted = one.at("left").get<std::map<std::string, int64_t>>();
    auto left = left_by(one);
    // "last.ckpt" is not replaced by a checkpoint from inside of a batch, from which training cannot go on as it was.
    if (one.at("raises_at") > 0) wanted.erase("last.ckpt"), left.erase("last.ckpt");
    EXPECT_EQ(left, wanted) << one;
  }
  std::cout << "one in " << testing::stride(4) << " of " << cases.size() << " cases of Lightning "
            << all.at("lightning") << '\n';
}

TEST(ModelCheckpoint, AnExceptionLeavesTheLastOneAsItWas) {
  EXPECT_EQ(
      left_by({{"callback",
                {{"every_n_train_steps", 3}, {"save_last", true}, {"save_on_exception", true}, {"save_top_k", 0}}},
               {"raises_at", 6},
               {"trainer", nlohmann::json::object()}}),
      (std::map<std::string, int64_t>{{"last.ckpt", 3}, {"step=5.ckpt", 5}}));
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

TEST(ModelCheckpoint, AnEqualValueIsNoImprovementAndNaNIsTheWorst) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto best = [](std::vector<double> values, const char* mode) {
    const auto epochs = std::ssize(values);
    return saved({.filename = "{epoch}", .mode = MonitorMode::parse(mode).value(), .monitor = "v"},
                 {.max_epochs = epochs}, std::move(values));
  };
  for (const char* mode : {"min", "max"}) {
    EXPECT_EQ(best({1, 1}, mode), (Names{"epoch=0.ckpt"})) << mode;
    EXPECT_EQ(best({nan, 5, nan}, mode), (Names{"epoch=1.ckpt"})) << mode;
    EXPECT_EQ(best({nan, nan}, mode), (Names{"epoch=0.ckpt"})) << mode;
  }
}

TEST(ModelCheckpoint, ASaveThatIsDueWaitsForTheFirstValidation) {
  EXPECT_EQ(saved({.every_n_train_steps = 3, .filename = "{step}", .monitor = "v", .save_top_k = -1}, {.max_epochs = 2},
                  {2, 1}, 4),
            (Names{"step=4.ckpt", "step=6.ckpt"}));
}

TEST(ModelCheckpoint, WhereNothingWasUpdatedNothingIsSaved) {
  const testing::TemporaryFolder folder;
  MeasuredModule module({1}, 2);
  module.make_optimizers = [](CountingModule&) { return Optimizers(); };
  Trainer trainer({.default_root_dir = folder.path(), .max_epochs = 2, .val_check_interval = 0.5});
  trainer.fit(module);
  trainer.validate(module);
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), Names());
  MeasuredModule checked({1}, 2);
  Trainer(TrainerOptions{.default_root_dir = folder.path(), .max_epochs = 0}).fit(checked);  // its sanity check
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), Names());
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
  EXPECT_EQ(saved({.filename = "{step}", .save_top_k = -1}, {.check_val_every_n_epoch = 2, .max_epochs = 5}),
            (Names{"step=4.ckpt", "step=8.ckpt"}));
  EXPECT_EQ(saved({.every_n_epochs = 0, .filename = "{step}"}, {.max_epochs = 2}), Names());
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
  EXPECT_EQ(saved({.enable_version_counter = false, .filename = "const", .save_top_k = -1}, {.max_epochs = 3}),
            (Names{"const.ckpt"}));
  EXPECT_EQ(saved({.filename = "const", .monitor = "v", .save_top_k = 2}, {.max_epochs = 4}, {4, 3, 2, 1}),
            (Names{"const-v1.ckpt", "const.ckpt"}));
}

TEST(ModelCheckpoint, ItsStateNamesWhatItKeeps) {
  const testing::TemporaryFolder folder;
  const auto fitted = [&](const std::shared_ptr<ModelCheckpoint>& saver) {
    MeasuredModule module({3, 2}, 1);
    Trainer({.callbacks = {saver}, .max_epochs = 2, .num_sanity_val_steps = 0}).fit(module);
    return saver->state_dict();
  };
  ModelCheckpointOptions options{.dirpath = folder.path() / "a", .monitor = "v", .save_top_k = 2};
  const auto first = std::make_shared<ModelCheckpoint>(options);
  const auto state = fitted(first);
  for (const auto* part : {"monitor=v", "mode=min", "every_n_train_steps", "every_n_epochs", "train_time_interval"})
    EXPECT_NE(first->state_key().find(part), std::string::npos) << part;
  EXPECT_EQ(first->best_model_score(), 2);
  EXPECT_EQ(state.at("best_k_models").map().size(), 2U);
  const auto same = std::make_shared<ModelCheckpoint>(options);
  same->setup(*std::make_unique<Trainer>(), *std::make_unique<CountingModule>(), Stage::fit);
  same->load_state_dict(state);
  EXPECT_EQ(same->best_k_models(), first->best_k_models());
  options.dirpath = folder.path() / "b";
  const auto moved = std::make_shared<ModelCheckpoint>(options);
  moved->load_state_dict(state);  // of another folder
  EXPECT_EQ(moved->best_model_path(), first->best_model_path());
  EXPECT_EQ(moved->best_model_score(), 2);
  EXPECT_TRUE(moved->best_k_models().empty());
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
