#include "muster/schedule/scheduler.h"

#include <utility>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "schedule/scheduler_state.h"

// Why: docs/decisions/0050-schedulers-of-our-own.md.
namespace muster {

OptimizerRates::OptimizerRates(torch::optim::Optimizer& optimizer)
    : optimizer_(&optimizer), groups_(optimizer.param_groups().size()),
      initial_(std::make_shared<std::vector<double>>()) {}

std::vector<double> OptimizerRates::get() const {
  const auto& groups = optimizer_->param_groups();
  if (groups.size() != groups_)
    throw UsageError("MU137",
                     formatted("a scheduler was made for {} parameter groups, and its optimizer now has {}; add groups "
                               "before you make the scheduler",
                               groups_, groups.size()));
  std::vector<double> rates;
  for (const auto& group : groups) rates.push_back(group.options().get_lr());
  return rates;
}

void OptimizerRates::set(const std::vector<double>& rates) const {
  for (size_t g = 0; g < rates.size(); ++g) optimizer_->param_groups()[g].options().set_lr(rates[g]);
}

std::vector<double>& OptimizerRates::initial() const {
  if (initial_->empty()) *initial_ = get();
  return *initial_;
}

LRScheduler::LRScheduler(OptimizerRates rates) : rates_(std::move(rates)), base_lrs_(rates_.initial()) {}

void LRScheduler::step() {
  auto lrs = rates_.get();
  advance();
  for (size_t g = 0; g < lrs.size(); ++g) lrs[g] = next_lr(g, lrs[g]);
  set_rates(lrs);
}

void LRScheduler::set_rates(const std::vector<double>& rates) {
  rates_.set(rates);
  set_others();
  last_lr_ = rates;
}

void LRScheduler::begin() {
  last_epoch_ = -1;
  initial_ = true;
  step();
  initial_ = false;
}

void LRScheduler::restart() {
  auto lrs = rates_.get();
  last_epoch_ = 0;
  for (size_t g = 0; g < lrs.size(); ++g) lrs[g] = closed_form_lr(g, lrs[g]);
  set_rates(lrs);
}

SchedulerState LRScheduler::state_dict() const {
  return {{"base_lrs", base_lrs_},
          {"last_epoch", schedule::as_state(last_epoch_)},
          {"last_lr", last_lr_},
          {"lr", rates_.get()}};
}

void LRScheduler::load(const SchedulerState& state) {
  const auto groups = rates_.groups();
  const auto& base = schedule::read_state(state, "base_lrs", groups);
  const auto& last = schedule::read_state(state, "last_lr", groups);
  const auto& now = schedule::read_state(state, "lr", groups);
  last_epoch_ = schedule::read_count(state, "last_epoch");
  base_lrs_ = base;
  last_lr_ = last;
  rates_.set(now);
}

void LRScheduler::load_state_dict(const SchedulerState& state) {
  const auto before = state_dict();
  for (const auto& [name, values] : before) schedule::read_state(state, name, values.size());
  for (const auto& [name, values] : state)
    if (!before.contains(name))
      throw UsageError("MU138", "the state of a scheduler has an entry '" + name +
                                    "' that this one does not know; load it into a "
                                    "scheduler made as the one that was saved");
  load(state);
}

namespace schedule {

const std::vector<double>& read_state(const SchedulerState& state, const std::string& name, size_t count) {
  const auto found = state.find(name);
  if (found == state.end())
    throw UsageError("MU138", "the state of a scheduler has no entry '" + name +
                                  "', which this one needs; load it into a scheduler "
                                  "made as the one that was saved");
  if (found->second.size() != count)
    throw UsageError("MU138",
                     formatted("the entry '{}' of a scheduler's state has {} values, expected {}: the optimizer it was "
                               "saved for has other parameter groups",
                               name, found->second.size(), count));
  return found->second;
}

double read_number(const SchedulerState& state, const std::string& name) { return read_state(state, name, 1).front(); }

}  // namespace schedule
}  // namespace muster
