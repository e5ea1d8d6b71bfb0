#include "preparation.h"

#include "muster/base/error.h"
#include "muster/runtime/loop_access.h"
#include "optimization.h"
#include "run.h"
#include "runtime/prepared_model.h"

namespace muster::trainer {

PreparedBy::~PreparedBy() {
  if (const auto by = get()) by->drop();
}

void PreparedBy::set(const TrainerModule& module, const std::shared_ptr<Preparation>& by) {
  module_ = &module;
  by_ = by;
}

std::shared_ptr<Preparation> PreparedBy::get() const {
  auto by = by_.lock();
  return by && by->module == module_ ? by : nullptr;
}

void ScheduledUpdates::note_step() {
  pending = true;
  if (found_inf_is_ready(prepared)) wait_for_step();
}

void ScheduledUpdates::wait_for_step() {
  if (!std::exchange(pending, false)) return;
  const bool schedules_due = std::exchange(schedulers_deferred, false);
  const bool made = !prepared.step_was_skipped();
  if (made) ++steps, ++run_->progress.global_step;
  if (schedules_due) step_due_schedules(made, /*epoch_ends=*/false);
  else made_update = made_update || made;
}

void ScheduledUpdates::step_schedules(bool epoch_ends) {
  if (epoch_ends) wait_for_step();  // so that schedules step in order
  const auto follows = [](const Schedule& one) {
    return !one.plateau && one.config.interval == ScheduleInterval("step");
  };
  schedulers_deferred = pending && std::ranges::any_of(schedules, follows);
  if (schedulers_deferred) when_found_inf_is_ready(prepared, [this] { wait_for_step(); });
  step_due_schedules(std::exchange(made_update, false), epoch_ends);
}

void ScheduledUpdates::step_due_schedules(bool after_update, bool epoch_ends) {
  for (const auto& schedule : schedules) {
    if (schedule.plateau) continue;
    const auto frequency = schedule.config.frequency;
    const bool due = schedule.config.interval == ScheduleInterval("step")
                         ? after_update && steps % frequency == 0
                         : epoch_ends && (run_->progress.epoch + 1) % frequency == 0;
    if (due)
      run_->hooks.module(Hook::lr_scheduler_step, &TrainerModule::lr_scheduler_step, schedule.scheduler,
                         std::optional<double>());
  }
}

void Preparation::wait_for_steps() {
  for (const auto& one : updates) one->wait_for_step();
}

int64_t Preparation::pending_steps() const {
  return std::ranges::count_if(updates, [](const auto& one) { return one->pending; });
}

void Preparation::drop_optimizers() {
  handles.clear();
  schedulers.clear();
  updates.clear();
}

void Preparation::drop() {
  drop_optimizers();  // they would keep the model
  module = nullptr;
  model = {};
}

const Model<torch::nn::Module>& Preparation::required_model(const char* call) const {
  if (model) return model;
  throw UsageError("MU446", std::string(call) +
                                " was called before the first run, which prepares the module, or after another Trainer "
                                "has taken it over, or after the module has ended: ask that Trainer, or run this one "
                                "again");
}

void Preparation::release() {
  drop_optimizers();  // they would keep the model
  runtime::release_model(model);
  drop();
}

}  // namespace muster::trainer

namespace muster {

void Optimizers::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (!optimizer)
    throw UsageError("MU443", "configure_optimizers returned an empty pointer for an optimizer; return {} for none");
  entries_.push_back({.optimizer = std::move(optimizer)});
}

void Optimizers::add_scheduler(LRSchedulerConfig config) {
  if (entries_.empty())
    throw UsageError("MU443",
                     "configure_optimizers returned a scheduler before any optimizer; name each after its optimizer");
  entries_.back().schedulers.push_back(std::move(config));
}

at::Tensor ModuleOptimizer::step(const Closure& closure) const {
  return updates_->optimization->step(*updates_, closure);
}
void ModuleOptimizer::zero_grad(bool set_to_none) const { updates_->prepared.zero_grad(set_to_none); }
int64_t ModuleOptimizer::steps() const { return updates_->made_steps(); }
std::vector<torch::optim::OptimizerParamGroup>& ModuleOptimizer::param_groups() const {
  updates_->step_deferred_schedulers();
  return updates_->own->param_groups();
}
torch::optim::Optimizer& ModuleOptimizer::inner() const {
  updates_->wait_for_step();
  return *updates_->own;
}

ToggledOptimizer::ToggledOptimizer(const ModuleOptimizer& one, const std::vector<ModuleOptimizer>& all) {
  const auto own = [&](const at::Tensor& parameter) {
    return std::ranges::any_of(one.param_groups(), [&](const auto& group) {
      return std::ranges::any_of(group.params(), [&](const at::Tensor& mine) { return mine.is_same(parameter); });
    });
  };
  for (const auto& other : all)
    for (const auto& group : other.param_groups())
      for (const auto& parameter : group.params())
        if (parameter.requires_grad() && !own(parameter)) frozen_.push_back(parameter.set_requires_grad(false));
}
ToggledOptimizer::~ToggledOptimizer() {
  for (auto& parameter : frozen_) parameter.set_requires_grad(true);
}

}  // namespace muster
