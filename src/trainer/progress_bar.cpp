#include <charconv>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/track/progress.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

// Why: docs/decisions/0102-what-the-trainer-shows.md.
namespace muster {
namespace {

/// Number of batches of all loaders; -1 if unknown.
int64_t total_of(const Trainer& trainer, Stage stage) {
  int64_t total = 0;
  for (const auto& batches : trainer.num_batches(stage)) {
    if (!batches) return -1;
    total += *batches;
  }
  return total;
}

}  // namespace

TrainerProgressBar::TrainerProgressBar(TrainerProgressBarOptions options) : options_(std::move(options)) {
  if (options_.refresh_rate < 0)
    throw ConfigError("MU451",
                      formatted("the options of TrainerProgressBar do not work: refresh_rate is {}; give at least 0",
                                options_.refresh_rate));
  options_.shown.unit = "batches";
}

Metrics TrainerProgressBar::get_metrics(const Trainer& trainer) const {
  auto metrics = trainer.progress_bar_metrics();
  const auto version = trainer.log_dir().filename().string();
  const auto digits = version.find_first_of("0123456789");
  int64_t number = 0;
  if (version.starts_with("version_") && digits != version.npos &&
      std::from_chars(version.data() + digits, version.data() + version.size(), number).ec == std::errc())
    metrics["v_num"] = static_cast<double>(number);
  return metrics;
}

void TrainerProgressBar::begin(Bar& bar, const Trainer& trainer, const std::string& title, Stage stage) const {
  bar = {};
  if (shows()) bar.shown = std::make_shared<Progress>(title, total_of(trainer, stage), options_.shown);
}

void TrainerProgressBar::advance(Bar& bar, const Trainer& trainer) const {
  if (!bar.shown || ++bar.waiting < options_.refresh_rate) return;
  if (bar.shown->shows_after(bar.waiting)) set_metrics(bar, trainer);
  bar.shown->advance(std::exchange(bar.waiting, 0));
}

void TrainerProgressBar::end(Bar& bar, const Trainer& trainer) const {
  if (!bar.shown) return;
  set_metrics(bar, trainer);
  bar.shown->advance(bar.waiting);
  bar = {};
}

void TrainerProgressBar::set_metrics(Bar& bar, const Trainer& trainer) const {
  for (const auto& [name, value] : get_metrics(trainer)) bar.shown->set(name, value);
}

void TrainerProgressBar::setup(Trainer& trainer, TrainerModule&, Stage) { main_ = trainer.runtime().is_main(); }
void TrainerProgressBar::teardown(Trainer&, TrainerModule&, Stage) { evaluation_ = training_ = {}; }

// A resumed epoch starts with a later batch.
void TrainerProgressBar::on_train_batch_start(Trainer& trainer, TrainerModule&, const BatchView&, BatchPlace place) {
  if (training_.shown || !shows()) return;
  begin(training_, trainer, "Epoch " + std::to_string(trainer.current_epoch()), Stage::fit);
  training_.shown->skip(place.batch_idx);
}
void TrainerProgressBar::on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                            BatchPlace) {
  advance(training_, trainer);
}
void TrainerProgressBar::on_train_epoch_end(Trainer& trainer, TrainerModule&) { end(training_, trainer); }

void TrainerProgressBar::on_validation_start(Trainer& trainer, TrainerModule&) {
  begin(evaluation_, trainer, trainer.sanity_checking() ? "Sanity check" : "Validation", Stage::validate);
}
void TrainerProgressBar::on_validation_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                                 BatchPlace) {
  advance(evaluation_, trainer);
}
void TrainerProgressBar::on_validation_end(Trainer& trainer, TrainerModule&) { end(evaluation_, trainer); }

void TrainerProgressBar::on_test_start(Trainer& trainer, TrainerModule&) {
  begin(evaluation_, trainer, "Test", Stage::test);
}
void TrainerProgressBar::on_test_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                           BatchPlace) {
  advance(evaluation_, trainer);
}
void TrainerProgressBar::on_test_end(Trainer& trainer, TrainerModule&) { end(evaluation_, trainer); }

void TrainerProgressBar::on_predict_start(Trainer& trainer, TrainerModule&) {
  begin(evaluation_, trainer, "Prediction", Stage::predict);
}
void TrainerProgressBar::on_predict_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&,
                                              BatchPlace) {
  advance(evaluation_, trainer);
}
void TrainerProgressBar::on_predict_end(Trainer& trainer, TrainerModule&) { end(evaluation_, trainer); }

}  // namespace muster
