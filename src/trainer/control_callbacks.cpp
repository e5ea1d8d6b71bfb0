#include <cmath>

#include "base/log.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"
#include "options/trainer_fields.h"
#include "watchers.h"

namespace muster {

using trainer::is_better;

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(trainer::worst_value(options_.mode)) {
  trainer::Problems problems;
  problems.add_if(options_.monitor.empty(), "monitor is empty; name the metric to watch");
  problems.least("patience", options_.patience, 0);
  problems.add_if(!(options_.min_delta >= 0), formatted("min_delta is {}; give at least 0", options_.min_delta));
  trainer::raise_for("EarlyStopping", problems);
}

std::string EarlyStopping::state_key() const {
  return "EarlyStopping{monitor=" + options_.monitor + ", mode=" + std::string(options_.mode.text()) + "}";
}

State EarlyStopping::state_dict() const {
  return State::Map{{"best_score", best_},
                    {"patience", options_.patience},
                    {"reason", reason_},
                    {"stopped_epoch", stopped_epoch_},
                    {"wait_count", wait_count_}};
}

void EarlyStopping::load_state_dict(const State& state) {
  const auto best = state.at("best_score").number();
  const auto stopped_epoch = state.at("stopped_epoch").integer(), wait_count = state.at("wait_count").integer();
  reason_ = state.at("reason").text();
  best_ = best;
  stopped_epoch_ = stopped_epoch;
  wait_count_ = wait_count;
}

bool EarlyStopping::checks_at_train_epoch_end(const Trainer& trainer) const {
  return options_.check_on_train_epoch_end.value_or(trainer.validates_at_epoch_end_only());
}

void EarlyStopping::on_train_epoch_end(Trainer& trainer, TrainerModule&) {
  if (checks_at_train_epoch_end(trainer)) check(trainer);
}

void EarlyStopping::on_validation_end(Trainer& trainer, TrainerModule&) {
  if (!checks_at_train_epoch_end(trainer) && trainer.fitting()) check(trainer);
}

std::string EarlyStopping::judge(double value) {
  const auto shown = formatted("{} = {}", options_.monitor, value);
  if (options_.check_finite && !std::isfinite(value)) return shown + " is not finite";
  if (options_.stopping_threshold && is_better(value, *options_.stopping_threshold, options_.mode))
    return shown + formatted(" has passed the stopping threshold {}", *options_.stopping_threshold);
  if (options_.divergence_threshold && is_better(*options_.divergence_threshold, value, options_.mode))
    return shown + formatted(" has passed the divergence threshold {}", *options_.divergence_threshold);
  const double delta = options_.mode == MonitorMode("min") ? options_.min_delta : -options_.min_delta;
  if (is_better(value + delta, best_, options_.mode)) {
    best_ = value;
    wait_count_ = 0;
    return {};
  }
  if (++wait_count_ < options_.patience) return {};
  return formatted("{} has not improved in the last {} checks; the best value was {}", options_.monitor, wait_count_,
                   best_);
}

void EarlyStopping::check(Trainer& trainer) {
  if (trainer.options().fast_dev_run > 0) return;
  const auto& metrics = trainer.callback_metrics();
  const auto found = metrics.find(options_.monitor);
  auto reason = found == metrics.end() ? std::string() : judge(found->second);
  const auto& group = trainer.runtime().group();
  comm::CoalescedAllReduce votes(group, "early stopping");
  votes.add(found != metrics.end(), comm::ReduceOp::max);
  votes.add(!reason.empty(), comm::ReduceOp::max);
  votes.run();
  if (votes.result(0) == 0) {
    const auto missing = trainer::not_logged("EarlyStopping", options_.monitor, metrics);
    if (options_.strict) throw UsageError("MU449", missing + "; log it, or set strict = false");
    log::warning(missing);
    return;
  }
  if (votes.result(1) == 0) return;
  reason_ = reason.empty() ? "another rank stops" : std::move(reason);
  stopped_epoch_ = trainer.current_epoch();
  if (group.rank() == 0) log::warning("training ends early: ", reason_);
  trainer.stop();
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Timer::Duration time) { return std::chrono::duration<double>(time).count(); }

std::size_t index_of(Stage stage) { return static_cast<std::size_t>(stage); }

}  // namespace

Timer::Timer(TimerOptions options) : options_(options) {
  if (options_.duration && options_.duration->count() < 0)
    trainer::raise_for("Timer", {{formatted("duration is {} ms; give at least 0", options_.duration->count())}});
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

GradientAccumulationScheduler::GradientAccumulationScheduler(std::map<int64_t, int> scheduling)
    : scheduling_(std::move(scheduling)) {
  trainer::Problems problems;
  problems.add_if(scheduling_.empty(), "it names no epoch; give at least one, as {{4, 2}}");
  for (const auto& [epoch, batches] : scheduling_) {
    problems.add_if(epoch < 0, formatted("epoch {} is below 0", epoch));
    problems.add_if(batches < 1, formatted("epoch {} has {} batches; give at least 1", epoch, batches));
  }
  trainer::raise_for("GradientAccumulationScheduler", problems);
}

int GradientAccumulationScheduler::accumulate_grad_batches(int64_t epoch) const {
  const auto next = scheduling_.upper_bound(epoch);
  return next == scheduling_.begin() ? 1 : std::prev(next)->second;
}

void GradientAccumulationScheduler::setup(Trainer& trainer, TrainerModule& module, Stage stage) {
  if (stage != Stage::fit) return;
  if (!module.automatic_optimization)
    throw UsageError("MU435",
                     "GradientAccumulationScheduler has no effect in manual optimization, where the module decides "
                     "when it steps; leave it out");
  if (const auto own = trainer.options().accumulate_grad_batches; own != 1)
    throw UsageError("MU435", formatted("accumulate_grad_batches is {}, and GradientAccumulationScheduler sets it by "
                                        "epoch; name epoch 0 in it, and leave the option at 1",
                                        own));
  active_ = true;
}

void GradientAccumulationScheduler::teardown(Trainer& trainer, TrainerModule&, Stage) {
  if (std::exchange(active_, false)) trainer.set_accumulate_grad_batches(1);
}

// Must run before the open window of a resumed checkpoint is read: the lengths of both windows must be equal.
void GradientAccumulationScheduler::on_fit_start(Trainer& trainer, TrainerModule&) {
  trainer.set_accumulate_grad_batches(accumulate_grad_batches(trainer.current_epoch()));
}

void GradientAccumulationScheduler::on_train_epoch_start(Trainer& trainer, TrainerModule&) {
  trainer.set_accumulate_grad_batches(accumulate_grad_batches(trainer.current_epoch()));
}

}  // namespace muster
