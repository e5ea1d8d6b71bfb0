#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/testing/thrown.h"
#include "runtime/ranks.h"
#include "runtime/temporary_folder.h"
#include "trainer/counting_module.h"
#include "trainer/recorder.h"

namespace muster {
namespace {

using testing::CountingModule, testing::quiet;

/// A file in memory that a bar writes to.
class Screen {
 public:
  Screen() : file_(std::tmpfile()) {}
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
  ~Screen() { std::fclose(file_); }
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::string text(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }

 private:
  std::FILE* file_;
};

/// Shows what it logs.
struct Shown : CountingModule {
  using CountingModule::CountingModule;
  torch::Tensor training_step(torch::Tensor& batch, int64_t batch_idx) {
    log("loss", batch.sum(), {.on_epoch = true, .prog_bar = true});
    log("hidden", batch.sum());
    return CountingModule::training_step(batch, batch_idx);
  }
  void validation_step(torch::Tensor& batch, int64_t) { log("acc", batch.sum(), {.prog_bar = true}); }
  void test_step(torch::Tensor&, int64_t) {}
  torch::Tensor predict_step(torch::Tensor& batch, int64_t) { return batch; }
  auto test_dataloader() { return numbers(2); }
  auto predict_dataloader() { return numbers(2); }
};

/// Prints each of four quarters as a line.
std::shared_ptr<TrainerProgressBar> bar_on(const Screen& screen, TrainerProgressBarOptions options = {}) {
  options.shown.stream = screen.file();
  options.shown.style = ProgressOptions::Style::lines;
  return std::make_shared<TrainerProgressBar>(options);
}

TrainerOptions with(const std::shared_ptr<TrainerProgressBar>& bar, TrainerOptions options = {}) {
  options.callbacks.push_back(bar);
  options.enable_checkpointing = options.enable_model_summary = false;
  return options;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(TrainerProgressBar, EveryStageHasItsBar) {
  const Screen screen;
  Shown module(4, 3);
  Trainer trainer(with(bar_on(screen), {.max_epochs = 2}));
  trainer.fit(module);
  trainer.test(module);
  trainer.predict(module);
  const auto text = screen.text();
  for (const auto* title : {"Sanity check [", "Validation [", "Epoch 0 [", "Epoch 1 [", "Test [", "Prediction ["})
    EXPECT_NE(text.find(title), std::string::npos) << title << " in\n" << text;
  EXPECT_EQ(count(text, " 100%"), 1u + 2 + 2 + 1 + 1) << text;
}

TEST(TrainerProgressBar, ItShowsWhatWasLoggedForIt) {
  const Screen screen;
  Shown module(4, 1);
  Trainer trainer(with(bar_on(screen), {.max_epochs = 1}));
  trainer.fit(module);
  const auto text = screen.text();
  EXPECT_NE(text.find("loss_step 2"), std::string::npos) << text;
  EXPECT_NE(text.find("loss_epoch 1.5"), std::string::npos) << text;
  EXPECT_NE(text.find("acc 0"), std::string::npos) << text;
  EXPECT_EQ(text.find("hidden"), std::string::npos) << text;
  EXPECT_EQ(trainer.progress_bar_metrics(), (Metrics{{"acc", 0}, {"loss_epoch", 1.5}, {"loss_step", 3}}));
}

TEST(TrainerProgressBar, ItShowsTheVersionOfTheLoggersRun) {
  const testing::TemporaryFolder folder;
  const Screen screen;
  const auto bar = bar_on(screen);
  const Trainer trainer(
      with(bar, {.default_root_dir = folder.path(),
                 .logger = {.log_with = {std::make_shared<testing::Recorder>()}, .version = "version_12"}}));
  EXPECT_EQ(bar->get_metrics(trainer), (Metrics{{"v_num", 12}}));
}

TEST(TrainerProgressBar, ARateBelowOneOrDisablingShowsNothing) {
  const Screen screen;
  Shown module(4, 1);
  Trainer(with(bar_on(screen, {.refresh_rate = 0}), {.max_epochs = 1})).fit(module);
  const auto bar = bar_on(screen);
  bar->disable();
  Trainer(with(bar, {.max_epochs = 1})).fit(module);
  EXPECT_EQ(screen.text(), "");
}

TEST(TrainerProgressBar, AResumedEpochGoesOn) {
  const testing::TemporaryFolder folder;
  const auto saved = folder.path() / "in_epoch.ckpt";
  LambdaHooks hooks;
  hooks.on_train_batch_end = [&](Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                 BatchPlace place) {
    if (place.batch_idx == 4) trainer.save_checkpoint(saved);
  };
  Shown first(8), rest(8);
  Trainer(quiet({.callbacks = {std::make_shared<LambdaCallback>(hooks)}, .limit_val_batches = 0, .max_epochs = 1}))
      .fit(first);
  const Screen screen;
  Trainer(with(bar_on(screen), {.limit_val_batches = 0, .max_epochs = 1})).fit(rest, {.ckpt_path = saved});
  const auto text = screen.text();
  EXPECT_NE(text.find("100%"), std::string::npos) << text;
  EXPECT_EQ(text.find(" 25%"), std::string::npos) << text;
}

TEST(TrainerProgressBar, ItIsUpdatedEverySoManyBatches) {
  const Screen screen;
  Shown module(8, 0);
  Trainer(with(bar_on(screen, {.refresh_rate = 5}), {.limit_val_batches = 0, .max_epochs = 1})).fit(module);
  const auto text = screen.text();
  EXPECT_EQ(count(text, "\n"), 2u) << text;  // after five batches, and at the end
  EXPECT_NE(text.find(" 62%"), std::string::npos) << text;
  EXPECT_NE(text.find("100%"), std::string::npos) << text;
}

TEST(TrainerProgressBar, TheTrainerAddsOneUnlessToldOtherwise) {  // MU440
  const auto count_in = [](const Trainer& trainer) {
    return std::ranges::count_if(trainer.callbacks(), [](const auto& callback) {
      return dynamic_cast<const TrainerProgressBar*>(callback.get()) != nullptr;
    });
  };
  const Screen screen;
  EXPECT_EQ(count_in(Trainer()), 1);
  EXPECT_EQ(count_in(Trainer({.callbacks = {bar_on(screen)}})), 1);
  EXPECT_EQ(count_in(Trainer({.enable_progress_bar = false})), 0);
  EXPECT_EQ(testing::thrown_id([&] { Trainer({.callbacks = {bar_on(screen)}, .enable_progress_bar = false}); }),
            "MU440");
  EXPECT_EQ(testing::thrown_id([] { TrainerProgressBar({.refresh_rate = -1}); }), "MU451");
}

TEST(TrainerProgressBar, TheMainRankShowsIt) {
  testing::as_ranks(2, [] {
    const Screen screen;
    Shown module(4, 1);
    Trainer trainer(with(bar_on(screen), {.max_epochs = 1}));
    trainer.fit(module);
    EXPECT_EQ(screen.text().empty(), !trainer.runtime().is_main());
  });
}

}  // namespace
}  // namespace muster
