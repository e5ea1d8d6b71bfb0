#include <cmath>
#include <utility>

#include "base/listing.h"
#include "base/log.h"
#include "comm/agreement.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/trainer/callbacks.h"
#include "muster/trainer/trainer.h"
#include "watchers.h"

namespace muster {

using trainer::is_better;

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), best_(trainer::worst_value(options_.mode)) {
  std::vector<std::string> problems;
  if (options_.monitor.empty()) problems.emplace_back("monitor is empty; name the metric to watch");
  if (options_.patience < 0) problems.push_back(formatted("patience is {}; give at least 0", options_.patience));
  if (!(options_.min_delta >= 0)) problems.push_back(formatted("min_delta is {}; give at least 0", options_.min_delta));
  if (!problems.empty()) throw ConfigError("MU451", "the options of EarlyStopping do not work: " + joined(problems));
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

}  // namespace muster
