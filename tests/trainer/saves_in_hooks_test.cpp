// What hooks of the program's own save is resumed as if there had been no interruption.
#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/schedule/schedulers.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster::saves_in_hooks {
namespace {

namespace fs = std::filesystem;
using testing::CountingModule, testing::Recorder;

/// Who saves, in which hook of epoch 0.
struct Place {
  enum class Who { module, callback, watcher } who;
  std::string hook;
  std::ptrdiff_t rows = 0;  // of the logger before it
};

/// Saves once.
struct Saves {
  Place::Who who;
  const Place* place;
  fs::path to;
  void at(Trainer& trainer, const char* hook) {
    if (to.empty() || who != place->who || place->hook != hook || trainer.current_epoch() > 0) return;
    trainer.save_checkpoint(std::exchange(to, fs::path()));
  }
};

struct SavingModule : CountingModule {
  explicit SavingModule(Saves& saves) : CountingModule(3, 2), saves(&saves) {}
  Saves* saves;
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    log("loss", batch.sum(), {.on_epoch = true});
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor&, int64_t) { log("v", 1.0); }
  void on_train_epoch_start() override { saves->at(trainer(), "on_train_epoch_start"); }
  void on_train_batch_end(const StepOutput&, torch::Tensor&, int64_t batch_idx) {
    if (batch_idx == 1) saves->at(trainer(), "on_train_batch_end");
  }
  void on_validation_start() override { saves->at(trainer(), "on_validation_start"); }
  void on_validation_epoch_end() override { saves->at(trainer(), "on_validation_epoch_end"); }
  void on_validation_end() override { saves->at(trainer(), "on_validation_end"); }
  void on_train_epoch_end() override { saves->at(trainer(), "on_train_epoch_end"); }
};

struct SavingCallback : Callback {
  SavingCallback(Saves& saves, bool watches) : saves(&saves), watches(watches) {}
  Saves* saves;
  bool watches;
  Callback::Place place() const override { return watches ? Callback::Place::last : Callback::Place::usual; }
  void on_validation_end(Trainer& trainer, TrainerModule&) override { saves->at(trainer, "on_validation_end"); }
  void on_train_epoch_end(Trainer& trainer, TrainerModule&) override { saves->at(trainer, "on_train_epoch_end"); }
};

struct Outcome {
  double w = 0;
  int64_t epochs = 0;
  std::string stopped = {};
  std::vector<double> rates = {};
  std::set<std::string> kept = {};
  Metrics metrics = {};
  std::vector<Recorder::Row> rows = {};
};

/// A run that a plateau slows down and EarlyStopping ends; it saves there, or is resumed from there.
Outcome run(const Place& place, const fs::path& folder, bool resumes) {
  const auto recorder = std::make_shared<Recorder>();
  const auto saved = folder / "saved";
  const auto saves = [&](Place::Who who) { return Saves{who, &place, resumes ? fs::path() : saved}; };
  Saves of_module = saves(Place::Who::module), of_callback = saves(Place::Who::callback),
        of_watcher = saves(Place::Who::watcher);
  SavingModule module(of_module);
  module.make_optimizers = [](CountingModule& m) -> Optimizers {
    auto adam = std::make_shared<torch::optim::AdamW>(m.parameters(), 0.1);
    return {adam, LRSchedulerConfig{.monitor = "v", .scheduler = ReduceLROnPlateau(*adam, {.patience = 0})}};
  };
  const auto stop = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "v", .patience = 2});
  const auto keeps = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder / "kept", .filename = "{epoch}-{step}", .save_top_k = -1});
  auto options = testing::logging_to(folder, recorder,
                                     {.callbacks = {std::make_shared<SavingCallback>(of_watcher, true), stop,
                                                    std::make_shared<SavingCallback>(of_callback, false), keeps},
                                      .log_every_n_steps = 1,
                                      .max_epochs = 6});
  options.enable_checkpointing = true;
  Trainer trainer(options);
  trainer.fit(module, {.ckpt_path = resumes ? saved.string() : ""});
  Outcome outcome{.w = module.w.item<double>(),
                  .epochs = trainer.current_epoch(),
                  .stopped = stop->stopping_reason(),
                  .rates = module.rates,
                  .metrics = trainer.callback_metrics()};
  for (const auto& entry : fs::directory_iterator(folder / "kept")) outcome.kept.insert(entry.path().filename());
  outcome.rows.assign(recorder->rows.begin() + (resumes ? 0 : place.rows), recorder->rows.end());
  return outcome;
}

void expect_resumed(const Place& place) {
  const testing::TemporaryFolder folder;
  const auto whole = run(place, folder.path(), false);
  fs::remove_all(folder.path() / "kept");
  const auto rest = run(place, folder.path(), true);
  const auto where = place.hook + " of " + std::to_string(static_cast<int>(place.who));
  EXPECT_EQ(rest.w, whole.w) << where;
  EXPECT_EQ(rest.epochs, whole.epochs) << where;
  EXPECT_EQ(rest.stopped, whole.stopped) << where;
  EXPECT_EQ(rest.kept, whole.kept) << where;
  EXPECT_EQ(rest.metrics, whole.metrics) << where;
  EXPECT_EQ(rest.rows, whole.rows) << where;
  ASSERT_LE(rest.rates.size(), whole.rates.size()) << where;
  EXPECT_TRUE(std::equal(rest.rates.rbegin(), rest.rates.rend(), whole.rates.rbegin())) << where;
}

TEST(SavesInHooks, OfAModuleAreContinued) {
  constexpr auto kModule = Place::Who::module;
  expect_resumed({kModule, "on_train_epoch_start", 0});
  expect_resumed({kModule, "on_train_batch_end", 1});
  for (const char* hook : {"on_validation_start", "on_validation_epoch_end"}) expect_resumed({kModule, hook, 3});
  for (const char* hook : {"on_validation_end", "on_train_epoch_end"}) expect_resumed({kModule, hook, 4});
}

TEST(SavesInHooks, OfACallbackToo) {
  for (const char* hook : {"on_validation_end", "on_train_epoch_end"}) {
    expect_resumed({Place::Who::callback, hook, 4});
    expect_resumed({Place::Who::watcher, hook, hook == std::string("on_train_epoch_end") ? 5 : 4});
  }
}

}  // namespace
}  // namespace muster::saves_in_hooks
