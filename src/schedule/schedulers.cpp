#include "muster/schedule/schedulers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "muster/optim/options.h"
#include "optim/parameter_groups.h"
#include "schedule/scheduler_state.h"

namespace muster {

using optim::each_group;
using schedule::require_option;

namespace {

std::vector<std::function<double(int64_t)>> lambdas_of(const PerGroup<std::function<double(int64_t)>>& given,
                                                       size_t groups) {
  auto each = optim::each_group(given, groups, "lr_lambda");
  for (const auto& one : each) require_option(static_cast<bool>(one), "lr_lambda", "empty", "a function");
  return each;
}

}  // namespace

LambdaLR::LambdaLR(OptimizerRates optimizer, const LambdaLROptions& options)
    : LRScheduler(std::move(optimizer)), lambdas_(lambdas_of(options.lr_lambda, rates_.groups())) {
  begin();
}
double LambdaLR::next_lr(size_t group, double) { return base_lr(group) * lambdas_[group](last_epoch()); }

MultiplicativeLR::MultiplicativeLR(OptimizerRates optimizer, const MultiplicativeLROptions& options)
    : LRScheduler(std::move(optimizer)), lambdas_(lambdas_of(options.lr_lambda, rates_.groups())) {
  begin();
}
double MultiplicativeLR::next_lr(size_t group, double lr) {
  return initial() ? lr : lr * lambdas_[group](last_epoch());
}

StepLR::StepLR(OptimizerRates optimizer, StepLROptions options) : LRScheduler(std::move(optimizer)), options_(options) {
  require_option(options_.step_size > 0, "step_size", options_.step_size, "at least 1");
  begin();
}
double StepLR::next_lr(size_t, double lr) {
  return last_epoch() == 0 || last_epoch() % options_.step_size != 0 ? lr : lr * options_.gamma;
}
double StepLR::closed_form_lr(size_t group, double) {
  return base_lr(group) * std::pow(options_.gamma, last_epoch() / options_.step_size);
}

MultiStepLR::MultiStepLR(OptimizerRates optimizer, MultiStepLROptions options)
    : LRScheduler(std::move(optimizer)), options_(std::move(options)) {
  require_option(!options_.milestones.empty(), "milestones", "empty", "a list of steps");
  std::sort(options_.milestones.begin(), options_.milestones.end());
  begin();
}
double MultiStepLR::next_lr(size_t, double lr) {
  const auto times = std::count(options_.milestones.begin(), options_.milestones.end(), last_epoch());
  return times == 0 ? lr : lr * std::pow(options_.gamma, times);
}
double MultiStepLR::closed_form_lr(size_t group, double) {
  const auto passed = std::upper_bound(options_.milestones.begin(), options_.milestones.end(), last_epoch());
  return base_lr(group) * std::pow(options_.gamma, passed - options_.milestones.begin());
}

ConstantLR::ConstantLR(OptimizerRates optimizer, ConstantLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  require_option(options_.factor > 0 && options_.factor <= 1, "factor", options_.factor, "above 0 and at most 1");
  begin();
}
double ConstantLR::next_lr(size_t, double lr) {
  if (last_epoch() == 0) return lr * options_.factor;
  return last_epoch() == options_.total_iters ? lr * (1.0 / options_.factor) : lr;
}
double ConstantLR::closed_form_lr(size_t group, double) {
  return base_lr(group) * (options_.factor + (last_epoch() >= options_.total_iters ? 1 - options_.factor : 0));
}

LinearLR::LinearLR(OptimizerRates optimizer, LinearLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  require_option(options_.start_factor > 0 && options_.start_factor <= 1, "start_factor", options_.start_factor,
                 "above 0 and at most 1");
  require_option(options_.end_factor >= 0 && options_.end_factor <= 1, "end_factor", options_.end_factor,
                 "between 0 and 1");
  require_option(options_.total_iters > 0, "total_iters", options_.total_iters, "at least 1");
  begin();
}
double LinearLR::next_lr(size_t, double lr) {
  const auto& o = options_;
  if (last_epoch() == 0) return lr * o.start_factor;
  if (last_epoch() > o.total_iters) return lr;
  const auto n = static_cast<double>(last_epoch()), total = static_cast<double>(o.total_iters);
  return lr *
         (1.0 + (o.end_factor - o.start_factor) / (total * o.start_factor + (n - 1) * (o.end_factor - o.start_factor)));
}
double LinearLR::closed_form_lr(size_t group, double) {
  const auto n = static_cast<double>(std::min(options_.total_iters, last_epoch()));
  const auto total = static_cast<double>(options_.total_iters);
  return base_lr(group) * (options_.start_factor + (options_.end_factor - options_.start_factor) * n / total);
}

ExponentialLR::ExponentialLR(OptimizerRates optimizer, ExponentialLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  require_option(options_.gamma > 0, "gamma", options_.gamma, "above 0");
  begin();
}
double ExponentialLR::next_lr(size_t, double lr) { return initial() ? lr : lr * options_.gamma; }
double ExponentialLR::closed_form_lr(size_t group, double) {
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(last_epoch()));
}

PolynomialLR::PolynomialLR(OptimizerRates optimizer, PolynomialLROptions options)
    : LRScheduler(std::move(optimizer)), options_(options) {
  require_option(options_.total_iters > 0, "total_iters", options_.total_iters, "at least 1");
  begin();
}
double PolynomialLR::next_lr(size_t, double lr) {
  if (initial() || last_epoch() > options_.total_iters) return lr;
  const auto n = static_cast<double>(last_epoch()), total = static_cast<double>(options_.total_iters);
  return lr * std::pow((1.0 - n / total) / (1.0 - (n - 1) / total), options_.power);
}
double PolynomialLR::closed_form_lr(size_t group, double) {
  const auto n = static_cast<double>(std::min(options_.total_iters, last_epoch()));
  return base_lr(group) * std::pow(1.0 - n / static_cast<double>(options_.total_iters), options_.power);
}

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

namespace schedule {
namespace {

namespace lib = torch::optim;

/// Replaces the group's momentum by f(momentum); false if these options have none.
template <class F>
bool change_momentum(const OptimizerRates& optimizer, size_t group, F&& f) {
  auto* options = &optimizer.optimizer().param_groups()[group].options();
  const auto of_momentum = [&](auto* own) {
    if (own) own->momentum(f(own->momentum()));
    return own != nullptr;
  };
  const auto of_betas = [&](auto* own) {
    if (own) own->betas({f(std::get<0>(own->betas())), std::get<1>(own->betas())});
    return own != nullptr;
  };
  return of_momentum(dynamic_cast<lib::SGDOptions*>(options)) ||
         of_momentum(dynamic_cast<lib::RMSpropOptions*>(options)) ||
         of_betas(dynamic_cast<lib::AdamOptions*>(options)) || of_betas(dynamic_cast<lib::AdamWOptions*>(options));
}

OptimizerRates set_to(OptimizerRates optimizer, const PerGroup<double>& rates, std::string_view option) {
  optimizer.set(optim::each_group(rates, optimizer.groups(), option));
  return optimizer;
}

}  // namespace

void MomentumSchedule::schedule_momentum(const PerGroup<double>& base, const PerGroup<double>& max) {
  base_momenta_ = optim::each_group(base, rates_.groups(), "base_momentum");
  max_momenta_ = optim::each_group(max, rates_.groups(), "max_momentum");
  for (size_t g = 0; g < rates_.groups(); ++g)
    if (!change_momentum(rates_, g, std::identity()))
      throw ConfigError("MU135",
                        "the schedule is to set the momentum of an optimizer that has none; make it with "
                        "cycle_momentum = false");
}

void MomentumSchedule::set_others() {
  for (size_t g = 0; g < base_momenta_.size(); ++g)
    change_momentum(rates_, g, [&](double) { return momentum(base_momenta_[g], max_momenta_[g]); });
}

SchedulerState MomentumSchedule::state_dict() const {
  auto state = LRScheduler::state_dict();
  for (size_t g = 0; g < base_momenta_.size(); ++g)
    change_momentum(rates_, g, [&](double now) { return state["momentum"].emplace_back(now); });
  return state;
}

void MomentumSchedule::load(const SchedulerState& state) {
  LRScheduler::load(state);
  if (base_momenta_.empty()) return;
  const auto& values = read_state(state, "momentum", rates_.groups());
  for (size_t g = 0; g < values.size(); ++g) change_momentum(rates_, g, [&](double) { return values[g]; });
}

}  // namespace schedule

CyclicLR::CyclicLR(OptimizerRates optimizer, CyclicLROptions options)
    : MomentumSchedule(schedule::set_to(std::move(optimizer), options.base_lr, "base_lr")),
      options_(std::move(options)), max_lrs_(optim::each_group(options_.max_lr, rates_.groups(), "max_lr")) {
  const auto down = options_.step_size_down.value_or(options_.step_size_up);
  schedule::require_option(options_.step_size_up > 0, "step_size_up", options_.step_size_up, "at least 1");
  schedule::require_option(down > 0, "step_size_down", down, "at least 1");
  total_size_ = static_cast<double>(options_.step_size_up + down);
  step_ratio_ = static_cast<double>(options_.step_size_up) / total_size_;
  base_lrs_ = optim::each_group(options_.base_lr, rates_.groups(), "base_lr");
  if (options_.cycle_momentum) schedule_momentum(options_.base_momentum, options_.max_momentum);
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

OneCycleLR::OneCycleLR(OptimizerRates optimizer, OneCycleLROptions options)
    : MomentumSchedule(std::move(optimizer)), options_(std::move(options)),
      max_lrs_(optim::each_group(options_.max_lr, rates_.groups(), "max_lr")) {
  if (options_.total_steps == 0) options_.total_steps = options_.epochs * options_.steps_per_epoch;
  schedule::require_option(options_.total_steps > 0, "total_steps (or epochs * steps_per_epoch)", options_.total_steps,
                           "at least 1");
  schedule::require_option(options_.pct_start >= 0 && options_.pct_start <= 1, "pct_start", options_.pct_start,
                           "between 0 and 1");
  const auto total = static_cast<double>(options_.total_steps), up = options_.pct_start * total - 1;
  phases_.push_back({up, Rate::initial, Rate::max});
  if (options_.three_phase) {
    phases_.push_back({2 * options_.pct_start * total - 2, Rate::max, Rate::initial});
    phases_.push_back({total - 1, Rate::initial, Rate::min});
  } else {
    phases_.push_back({total - 1, Rate::max, Rate::min});
  }
  for (size_t g = 0; g < rates_.groups(); ++g) base_lrs_[g] = max_lrs_[g] / options_.div_factor;
  rates_.initial() = base_lrs_;
  if (options_.cycle_momentum) schedule_momentum(options_.base_momentum, options_.max_momentum);
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

/// Low while the rate is at its maximum.
double OneCycleLR::momentum(double base, double max) const {
  const auto [phase, part] = place();
  return anneal(phase.from == Rate::max ? base : max, phase.to == Rate::max ? base : max, part);
}

}  // namespace muster
