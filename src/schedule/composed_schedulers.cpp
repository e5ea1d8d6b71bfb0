#include <algorithm>
#include <limits>

#include "muster/base/error.h"
#include "muster/optim/options.h"
#include "muster/schedule/schedulers.h"
#include "optim/parameter_groups.h"
#include "schedule/scheduler_state.h"

namespace muster {
namespace {

template <class Scheduler>
std::unique_ptr<LRScheduler> make_of(OptimizerRates optimizer, const auto& options) {
  return std::make_unique<Scheduler>(std::move(optimizer), options);
}

struct SchedulerMaker {
  OptimizerRates optimizer;
  using Made = std::unique_ptr<LRScheduler>;
  Made operator()(const ChainedSchedulerOptions& o) const { return make_of<ChainedScheduler>(optimizer, o); }
  Made operator()(const ConstantLROptions& o) const { return make_of<ConstantLR>(optimizer, o); }
  Made operator()(const CosineAnnealingLROptions& o) const { return make_of<CosineAnnealingLR>(optimizer, o); }
  Made operator()(const CosineAnnealingWarmRestartsOptions& o) const {
    return make_of<CosineAnnealingWarmRestarts>(optimizer, o);
  }
  Made operator()(const CyclicLROptions& o) const { return make_of<CyclicLR>(optimizer, o); }
  Made operator()(const ExponentialLROptions& o) const { return make_of<ExponentialLR>(optimizer, o); }
  Made operator()(const LambdaLROptions& o) const { return make_of<LambdaLR>(optimizer, o); }
  Made operator()(const LinearLROptions& o) const { return make_of<LinearLR>(optimizer, o); }
  Made operator()(const MultiplicativeLROptions& o) const { return make_of<MultiplicativeLR>(optimizer, o); }
  Made operator()(const MultiStepLROptions& o) const { return make_of<MultiStepLR>(optimizer, o); }
  Made operator()(const OneCycleLROptions& o) const { return make_of<OneCycleLR>(optimizer, o); }
  Made operator()(const PolynomialLROptions& o) const { return make_of<PolynomialLR>(optimizer, o); }
  Made operator()(const SequentialLROptions& o) const { return make_of<SequentialLR>(optimizer, o); }
  Made operator()(const StepLROptions& o) const { return make_of<StepLR>(optimizer, o); }
  Made operator()(const WarmupLROptions& o) const { return make_of<WarmupLR>(optimizer, o); }
  Made operator()(const Schedule::Maker& make) const {
    auto made = make ? make(optimizer) : nullptr;
    schedule::require_option(made != nullptr, "schedules", "a function that makes nothing",
                             "one that makes a scheduler");
    return made;
  }
};

std::string part_name(size_t index) { return std::to_string(index) + "/"; }

}  // namespace

std::unique_ptr<LRScheduler> make_scheduler(OptimizerRates optimizer, const Schedule& schedule) {
  return std::visit(SchedulerMaker{std::move(optimizer)}, schedule.options);
}

ComposedScheduler::ComposedScheduler(OptimizerRates optimizer, const std::vector<Schedule>& schedules)
    : LRScheduler(std::move(optimizer)) {
  schedule::require_option(!schedules.empty(), "schedules", "empty", "a list of at least one schedule");
  for (const auto& schedule : schedules) parts_.push_back(make_scheduler(rates_, schedule));
}

void ComposedScheduler::rewind() {
  rates_.set(rates_.initial());
  last_epoch_ = 0;
  for (auto& part : parts_) part->last_epoch_ = -1;
}

void ComposedScheduler::begin() {
  for (auto& part : parts_) part->begin();
  last_lr_ = rates_.get();
}

void ComposedScheduler::restart() {
  rewind();
  begin();
}

SchedulerState ComposedScheduler::state_dict() const {
  auto state = LRScheduler::state_dict();
  for (size_t i = 0; i < parts_.size(); ++i)
    for (auto& [name, values] : parts_[i]->state_dict()) state[part_name(i) + name] = values;
  return state;
}

void ComposedScheduler::load(const SchedulerState& state) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    SchedulerState own;
    const auto prefix = part_name(i);
    for (const auto& [name, values] : state)
      if (name.starts_with(prefix)) own[name.substr(prefix.size())] = values;
    parts_[i]->load(own);
  }
  LRScheduler::load(state);
}

SequentialLR::SequentialLR(OptimizerRates optimizer, SequentialLROptions options)
    : ComposedScheduler(std::move(optimizer), options.schedules), milestones_(std::move(options.milestones)) {
  schedule::require_option(milestones_.size() + 1 == parts_.size(), "milestones",
                           formatted("a list of {} for {} schedules", milestones_.size(), parts_.size()),
                           "one shorter");
  schedule::require_option(std::is_sorted(milestones_.begin(), milestones_.end()), "milestones", "not in order",
                           "ascending");
  restart();
}

std::optional<int64_t> SequentialLR::total_steps() const {
  const auto last = parts_.back()->total_steps();
  return last ? std::optional(*last + (milestones_.empty() ? 0 : milestones_.back())) : std::nullopt;
}

void SequentialLR::begin() {
  begin_part(std::upper_bound(milestones_.begin(), milestones_.end(), 0) - milestones_.begin());
  note_rates();
}

void SequentialLR::step() {
  advance();
  const size_t index = std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch_) - milestones_.begin();
  if (index > 0 && milestones_[index - 1] == last_epoch_) restart_part(index);
  else parts_[index]->step();
  note_rates();
}

ChainedScheduler::ChainedScheduler(OptimizerRates optimizer, const ChainedSchedulerOptions& options)
    : ComposedScheduler(std::move(optimizer), options.schedules) {
  last_epoch_ = 0;
  note_rates();
}

void ChainedScheduler::step() {
  advance();
  for (auto& part : parts_) part->step();
  note_rates();
}

ReduceLROnPlateau::ReduceLROnPlateau(OptimizerRates optimizer, ReduceLROnPlateauOptions options)
    : LRScheduler(std::move(optimizer)), options_(std::move(options)),
      min_lrs_(optim::each_group(options_.min_lr, rates_.groups(), "min_lr")),
      best_(options_.mode == PlateauMode::min ? std::numeric_limits<double>::infinity()
                                              : -std::numeric_limits<double>::infinity()) {
  schedule::require_option(options_.factor < 1.0, "factor", options_.factor, "below 1");
  last_epoch_ = 0;
  last_lr_ = rates_.get();
}

bool ReduceLROnPlateau::better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  const double margin = options_.threshold;
  if (options_.mode == PlateauMode::min) return metric < (relative ? best_ * (1.0 - margin) : best_ - margin);
  return metric > (relative ? best_ * (margin + 1.0) : best_ + margin);
}

double ReduceLROnPlateau::next_lr(size_t group, double lr) {
  const double reduced = std::max(lr * options_.factor, min_lrs_[group]);
  return lr - reduced > options_.eps ? reduced : lr;
}

void ReduceLROnPlateau::step(double metric) {
  auto lrs = rates_.get();
  advance();
  bad_steps_ = better(metric) ? 0 : bad_steps_ + 1;
  if (bad_steps_ == 0) best_ = metric;
  if (cooldown_ > 0) {
    --cooldown_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    for (size_t g = 0; g < lrs.size(); ++g) lrs[g] = next_lr(g, lrs[g]);
    cooldown_ = options_.cooldown;
    bad_steps_ = 0;
  }
  set_rates(lrs);
}

void ReduceLROnPlateau::step() {
  throw UsageError("MU139", "a ReduceLROnPlateau was stepped without its metric; call step(metric)");
}

SchedulerState ReduceLROnPlateau::state_dict() const {
  auto state = LRScheduler::state_dict();
  state["best"] = {best_};
  state["cooldown"] = schedule::as_state(cooldown_);
  state["bad_steps"] = schedule::as_state(bad_steps_);
  return state;
}

void ReduceLROnPlateau::load(const SchedulerState& state) {
  LRScheduler::load(state);
  best_ = schedule::read_number(state, "best");
  cooldown_ = schedule::read_count(state, "cooldown");
  bad_steps_ = schedule::read_count(state, "bad_steps");
}

}  // namespace muster
