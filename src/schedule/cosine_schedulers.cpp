#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "muster/schedule/schedulers.h"
#include "schedule/schedule_options.h"
#include "schedule/scheduler_state.h"

namespace muster {

using std::numbers::pi;

CosineAnnealingLR::CosineAnnealingLR(OptimizerRates optimizer, CosineAnnealingLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  schedule::require_option(options_.T_max > 0, "T_max", options_.T_max, "at least 1");
  begin();
}

double CosineAnnealingLR::next_lr(size_t group, double lr) {
  if (initial()) return lr;
  const auto low = options_.eta_min, n = static_cast<double>(last_epoch()), span = static_cast<double>(options_.T_max);
  // At the minimum, the quotient below would divide by zero.
  if ((last_epoch() - 1 - options_.T_max) % (2 * options_.T_max) == 0)
    return lr + (base_lr(group) - low) * (1 - std::cos(pi / span)) / 2;
  return (1 + std::cos(pi * n / span)) / (1 + std::cos(pi * (n - 1) / span)) * (lr - low) + low;
}

double CosineAnnealingLR::closed_form_lr(size_t group, double) {
  const auto part = static_cast<double>(last_epoch()) / static_cast<double>(options_.T_max);
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1 + std::cos(pi * part)) / 2;
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(OptimizerRates optimizer,
                                                         CosineAnnealingWarmRestartsOptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  schedule::require_option(options_.T_0 > 0, "T_0", options_.T_0, "at least 1");
  schedule::require_option(options_.T_mult > 0, "T_mult", options_.T_mult, "at least 1");
  begin();
}

void CosineAnnealingWarmRestarts::advance() {
  LRScheduler::advance();
  if (last_epoch() == 0) {
    T_cur_ = 0;
    T_i_ = options_.T_0;
  } else if (++T_cur_ >= T_i_) {
    T_cur_ = 0;
    T_i_ *= options_.T_mult;
  }
}

double CosineAnnealingWarmRestarts::next_lr(size_t group, double) {
  const auto n = static_cast<double>(T_cur_), span = static_cast<double>(T_i_);
  return options_.eta_min + (base_lr(group) - options_.eta_min) * (1 + std::cos(pi * n / span)) / 2;
}

SchedulerState CosineAnnealingWarmRestarts::state_dict() const {
  auto state = LRScheduler::state_dict();
  state["T_cur"] = schedule::as_state(T_cur_);
  state["T_i"] = schedule::as_state(T_i_);
  return state;
}

void CosineAnnealingWarmRestarts::load(const SchedulerState& state) {
  LRScheduler::load(state);
  T_cur_ = schedule::read_count(state, "T_cur");
  T_i_ = schedule::read_count(state, "T_i");
}

WarmupLR::WarmupLR(OptimizerRates optimizer, WarmupLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  schedule::require_option(options_.warmup_steps >= 0, "warmup_steps", options_.warmup_steps, "at least 0");
  if (options_.decay != WarmupDecay::constant)
    schedule::require_option(options_.total_steps > options_.warmup_steps, "total_steps", options_.total_steps,
                             "more than warmup_steps");
  begin();
}

std::optional<int64_t> WarmupLR::total_steps() const {
  return options_.decay == WarmupDecay::constant ? std::nullopt : std::optional(options_.total_steps);
}

double WarmupLR::next_lr(size_t group, double) {
  const auto n = last_epoch(), warm = options_.warmup_steps, total = options_.total_steps;
  if (n < warm) return base_lr(group) * (static_cast<double>(n) / static_cast<double>(warm));
  if (options_.decay == WarmupDecay::constant) return base_lr(group);
  const auto part = std::min(1.0, static_cast<double>(n - warm) / static_cast<double>(total - warm));
  const auto left = options_.decay == WarmupDecay::linear ? 1.0 - part : 0.5 * (1.0 + std::cos(pi * part));
  return base_lr(group) * (options_.end_factor + (1.0 - options_.end_factor) * left);
}

}  // namespace muster
