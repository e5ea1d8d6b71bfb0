#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "muster/optim/options.h"
#include "muster/schedule/schedulers.h"
#include "optim/parameter_groups.h"
#include "schedule/scheduler_state.h"

namespace muster {
namespace schedule {
namespace {

namespace lib = torch::optim;

/// Calls f(get, set) for the group's momentum; false if these options have none.
template <class F>
bool with_momentum(lib::OptimizerOptions& options, F&& f) {
  const auto of_momentum = [&](auto* own) {
    if (own) f([own] { return own->momentum(); }, [own](double value) { own->momentum(value); });
    return own != nullptr;
  };
  const auto of_betas = [&](auto* own) {
    if (own)
      f([own] { return std::get<0>(own->betas()); },
        [own](double value) {
          own->betas({value, std::get<1>(own->betas())});
        });
    return own != nullptr;
  };
  return of_momentum(dynamic_cast<lib::SGDOptions*>(&options)) ||
         of_momentum(dynamic_cast<lib::RMSpropOptions*>(&options)) ||
         of_betas(dynamic_cast<lib::AdamOptions*>(&options)) || of_betas(dynamic_cast<lib::AdamWOptions*>(&options));
}

lib::OptimizerOptions& options_of(const OptimizerRates& optimizer, size_t group) {
  return optimizer.optimizer().param_groups()[group].options();
}

OptimizerRates set_to(OptimizerRates optimizer, const PerGroup<double>& rates, std::string_view option) {
  optimizer.set(optim::each_group(rates, optimizer.groups(), option));
  return optimizer;
}

}  // namespace

MomentumSchedule::MomentumSchedule(const OptimizerRates& optimizer, const PerGroup<double>& base,
                                   const PerGroup<double>& max)
    : base_(optim::each_group(base, optimizer.groups(), "base_momentum")),
      max_(optim::each_group(max, optimizer.groups(), "max_momentum")) {
  for (size_t g = 0; g < optimizer.groups(); ++g)
    if (!with_momentum(options_of(optimizer, g), [](auto, auto) {}))
      throw ConfigError("MU135",
                        "the schedule is to set the momentum of an optimizer that has none; make it with "
                        "cycle_momentum = false");
}

void MomentumSchedule::set(const OptimizerRates& optimizer, size_t group, double momentum) const {
  with_momentum(options_of(optimizer, group), [&](auto, auto set) { set(momentum); });
}

void MomentumSchedule::save(const OptimizerRates& optimizer, SchedulerState& state) const {
  if (!on()) return;
  auto& values = state["momentum"];
  for (size_t g = 0; g < optimizer.groups(); ++g)
    with_momentum(options_of(optimizer, g), [&](auto get, auto) { values.push_back(get()); });
}

void MomentumSchedule::load(const OptimizerRates& optimizer, const SchedulerState& state) const {
  if (!on()) return;
  const auto& values = read_state(state, "momentum", optimizer.groups());
  for (size_t g = 0; g < values.size(); ++g) set(optimizer, g, values[g]);
}

}  // namespace schedule

CyclicLR::CyclicLR(OptimizerRates optimizer, CyclicLROptions options)
    : LRScheduler(schedule::set_to(std::move(optimizer), options.base_lr, "base_lr")), options_(std::move(options)),
      max_lrs_(optim::each_group(options_.max_lr, rates_.groups(), "max_lr")) {
  const auto down = options_.step_size_down.value_or(options_.step_size_up);
  schedule::require_option(options_.step_size_up > 0, "step_size_up", options_.step_size_up, "at least 1");
  schedule::require_option(down > 0, "step_size_down", down, "at least 1");
  total_size_ = static_cast<double>(options_.step_size_up + down);
  step_ratio_ = static_cast<double>(options_.step_size_up) / total_size_;
  base_lrs_ = optim::each_group(options_.base_lr, rates_.groups(), "base_lr");
  if (options_.cycle_momentum) momentum_ = {rates_, options_.base_momentum, options_.max_momentum};
  begin();
}

double CyclicLR::height() const {
  const auto n = static_cast<double>(last_epoch());
  const double cycle = std::floor(1 + n / total_size_), x = 1.0 + n / total_size_ - cycle;
  const double part = x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  if (options_.scale_fn) return part * options_.scale_fn(options_.scale_mode == CyclicScaleMode::cycle ? cycle : n);
  switch (options_.mode) {
    case CyclicMode::triangular: break;
    case CyclicMode::triangular2: return part * (1 / std::pow(2.0, cycle - 1));
    case CyclicMode::exp_range: return part * std::pow(options_.gamma, n);
  }
  return part;
}

double CyclicLR::next_lr(size_t group, double) {
  return base_lr(group) + (max_lrs_[group] - base_lr(group)) * height();
}

void CyclicLR::set_others() {
  if (!momentum_.on()) return;
  for (size_t g = 0; g < rates_.groups(); ++g)
    momentum_.set(rates_, g, momentum_.max(g) - (momentum_.max(g) - momentum_.base(g)) * height());
}

SchedulerState CyclicLR::state_dict() const {
  auto state = LRScheduler::state_dict();
  momentum_.save(rates_, state);
  return state;
}

void CyclicLR::load(const SchedulerState& state) {
  LRScheduler::load(state);
  momentum_.load(rates_, state);
}

OneCycleLR::OneCycleLR(OptimizerRates optimizer, OneCycleLROptions options)
    : LRScheduler(std::move(optimizer)), options_(std::move(options)),
      max_lrs_(optim::each_group(options_.max_lr, rates_.groups(), "max_lr")) {
  if (options_.total_steps == 0) options_.total_steps = options_.epochs * options_.steps_per_epoch;
  schedule::require_option(options_.total_steps > 0, "total_steps (or epochs * steps_per_epoch)", options_.total_steps,
                           "at least 1");
  schedule::require_option(options_.pct_start >= 0 && options_.pct_start <= 1, "pct_start", options_.pct_start,
                           "between 0 and 1");
  const auto total = static_cast<double>(options_.total_steps), up = options_.pct_start * total - 1;
  phases_.push_back({up, Rate::initial, Rate::max, true, false});
  if (options_.three_phase) {
    phases_.push_back({2 * options_.pct_start * total - 2, Rate::max, Rate::initial, false, true});
    phases_.push_back({total - 1, Rate::initial, Rate::min, true, true});
  } else {
    phases_.push_back({total - 1, Rate::max, Rate::min, false, true});
  }
  for (size_t g = 0; g < rates_.groups(); ++g) base_lrs_[g] = max_lrs_[g] / options_.div_factor;
  rates_.initial() = base_lrs_;
  if (options_.cycle_momentum) momentum_ = {rates_, options_.base_momentum, options_.max_momentum};
  begin();
}

double OneCycleLR::rate(size_t group, Rate which) const {
  if (which == Rate::max) return max_lrs_[group];
  return which == Rate::initial ? base_lr(group) : base_lr(group) / options_.final_div_factor;
}

std::pair<OneCycleLR::Phase, double> OneCycleLR::place() const {
  // A loop that steps the scheduler after its last update takes one step past the end, which keeps the last rate.
  const auto n = static_cast<double>(std::min(last_epoch(), options_.total_steps - 1));
  double begin = 0;
  for (const auto& phase : phases_) {
    if (n <= phase.end_step || &phase == &phases_.back())
      return {phase, phase.end_step == begin ? 1.0 : (n - begin) / (phase.end_step - begin)};
    begin = phase.end_step;
  }
  return {phases_.back(), 1.0};
}

double OneCycleLR::anneal(double from, double to, double part) const {
  if (options_.anneal_strategy == AnnealStrategy::linear) return (to - from) * part + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

void OneCycleLR::advance() {
  if (last_epoch() >= options_.total_steps)
    throw UsageError("MU136",
                     formatted("a OneCycleLR of {} steps was stepped once more; give it as total_steps the number of "
                               "optimizer steps of the whole training",
                               options_.total_steps));
  LRScheduler::advance();
}

double OneCycleLR::next_lr(size_t group, double) {
  const auto [phase, part] = place();
  return anneal(rate(group, phase.from), rate(group, phase.to), part);
}

void OneCycleLR::set_others() {
  if (!momentum_.on()) return;
  const auto [phase, part] = place();
  for (size_t g = 0; g < rates_.groups(); ++g) {
    const double from = phase.momentum_from_max ? momentum_.max(g) : momentum_.base(g);
    momentum_.set(rates_, g, anneal(from, phase.momentum_to_max ? momentum_.max(g) : momentum_.base(g), part));
  }
}

SchedulerState OneCycleLR::state_dict() const {
  auto state = LRScheduler::state_dict();
  momentum_.save(rates_, state);
  return state;
}

void OneCycleLR::load(const SchedulerState& state) {
  LRScheduler::load(state);
  momentum_.load(rates_, state);
}

}  // namespace muster
