#include <utility>

#include "base/log.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Timer::Duration time) { return std::chrono::duration<double>(time).count(); }

std::size_t index_of(Stage stage) { return static_cast<std::size_t>(stage); }

}  // namespace

Timer::Timer(TimerOptions options) : options_(options) {
  if (options_.duration && options_.duration->count() < 0)
    throw ConfigError("MU451", formatted("the options of Timer do not work: duration is {} ms; give at least 0",
                                         options_.duration->count()));
}

Timer::Duration Timer::time_elapsed(Stage stage) const {
  const auto& span = spans_[index_of(stage)];
  const auto before = stage == Stage::fit ? before_ : Duration();
  return span.begin ? before + (span.end.value_or(Clock::now()) - *span.begin) : before;
}

std::optional<Timer::Duration> Timer::time_remaining() const {
  if (!options_.duration) return std::nullopt;
  return *options_.duration - time_elapsed();
}

std::optional<Clock::time_point> Timer::start_time(Stage stage) const { return spans_[index_of(stage)].begin; }
std::optional<Clock::time_point> Timer::end_time(Stage stage) const { return spans_[index_of(stage)].end; }

State Timer::state_dict() const { return State::Map{{"time_elapsed", seconds(time_elapsed())}}; }

void Timer::load_state_dict(const State& state) {
  before_ = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(state.at("time_elapsed").number()));
  spans_[index_of(Stage::fit)] = {};
}

void Timer::start(Stage stage) { spans_[index_of(stage)] = {.begin = Clock::now()}; }
void Timer::finish(Stage stage) { spans_[index_of(stage)].end = Clock::now(); }

void Timer::check(Trainer& trainer) const {
  const auto left = time_remaining();
  if (!left || *left > Duration() || !trainer.runtime().is_main() || trainer.should_stop()) return;
  if (options_.verbose)
    log::warning("training ends: its time is over, ", formatted("{:.1f} s", seconds(*options_.duration)));
  trainer.stop();
}

// A resumed run may already have used up its time.
void Timer::on_fit_start(Trainer& trainer, TrainerModule&) {
  if (before_ > Duration()) check(trainer);
}

// A further fit() of the same Trainer adds to the time.
void Timer::on_train_start(Trainer&, TrainerModule&) {
  before_ = time_elapsed();
  start(Stage::fit);
}
void Timer::on_train_end(Trainer&, TrainerModule&) { finish(Stage::fit); }

void Timer::on_exception(Trainer&, TrainerModule&, const std::exception_ptr&) {
  const auto now = Clock::now();
  for (auto& span : spans_)
    if (span.begin && !span.end) span.end = now;
}

void Timer::on_train_batch_end(Trainer& trainer, TrainerModule&, const StepOutput&, const BatchView&, BatchPlace) {
  if (options_.interval == ScheduleInterval("step")) check(trainer);
}
void Timer::on_train_epoch_end(Trainer& trainer, TrainerModule&) {
  if (options_.interval == ScheduleInterval("epoch")) check(trainer);
}

void Timer::on_validation_start(Trainer&, TrainerModule&) { start(Stage::validate); }
void Timer::on_validation_end(Trainer&, TrainerModule&) { finish(Stage::validate); }
void Timer::on_test_start(Trainer&, TrainerModule&) { start(Stage::test); }
void Timer::on_test_end(Trainer&, TrainerModule&) { finish(Stage::test); }

}  // namespace muster
