#include "trained_module.h"

#include <algorithm>
#include <string>
#include <utility>

#include "muster/base/error.h"
#include "muster/runtime/loop_access.h"
#include "run.h"
#include "runtime/release_model.h"

namespace muster::trainer {

PreparedBy::~PreparedBy() {
  if (const auto by = get()) by->drop();
}

void PreparedBy::set(const TrainerModule& module, const std::shared_ptr<TrainedModule>& by) {
  module_ = &module;
  by_ = by;
}

std::shared_ptr<TrainedModule> PreparedBy::get() const {
  auto by = by_.lock();
  return by && by->module == module_ ? by : nullptr;
}

void TrainedOptimizer::note_step() {
  pending = true;
  if (found_inf_is_ready(prepared)) wait_for_step();
}

void TrainedOptimizer::wait_for_step() {
  if (!std::exchange(pending, false)) return;
  const bool schedules_due = std::exchange(schedulers_deferred, false);
  const bool made = !prepared.step_was_skipped();
  if (made) ++steps, ++run_->progress.global_step;
  if (schedules_due) step_due_schedules(made, /*epoch_ends=*/false);
  else updated = updated || made;
}

void TrainedOptimizer::step_schedules(bool epoch_ends) {
  if (epoch_ends) wait_for_step();  // so that schedules step in order
  const auto follows = [](const Schedule& one) {
    return !one.plateau && one.config.interval == ScheduleInterval("step");
  };
  schedulers_deferred = pending && std::ranges::any_of(schedules, follows);
  if (schedulers_deferred) when_found_inf_is_ready(prepared, [this] { wait_for_step(); });
  step_due_schedules(std::exchange(updated, false), epoch_ends);
}

void TrainedOptimizer::step_due_schedules(bool after_update, bool epoch_ends) {
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

void TrainedModule::wait_for_steps() {
  for (const auto& trained : optimizers) trained->wait_for_step();
}

int64_t TrainedModule::pending_steps() const {
  return std::ranges::count_if(optimizers, [](const auto& trained) { return trained->pending; });
}

void TrainedModule::drop_optimizers() {
  handles.clear();
  schedulers.clear();
  optimizers.clear();
}

void TrainedModule::drop() {
  drop_optimizers();  // they would keep the model
  module = nullptr;
  model = {};
}

const Model<torch::nn::Module>& TrainedModule::required_model(const char* call) const {
  if (model) return model;
  throw UsageError("MU446", std::string(call) +
                                " was called before the first run, which prepares the module, or after another Trainer "
                                "has taken it over, or after the module has ended: ask that Trainer, or run this one "
                                "again");
}

void TrainedModule::release() {
  drop_optimizers();  // they would keep the model
  runtime::release_model(model);
  drop();
}

}  // namespace muster::trainer
