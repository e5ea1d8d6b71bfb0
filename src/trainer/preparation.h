#pragma once

#include "muster/runtime.h"
#include "muster/runtime/model.h"
#include "muster/trainer/module.h"
#include "muster/trainer/optimizers.h"

namespace muster::trainer {

class Optimization;
class Run;

// Why: docs/decisions/0149-a-trainer-learns-of-a-step-late.md.

/// The updates that one optimizer makes in a run, and the schedules that follow them. On a device under loss scaling,
/// it is known whether a step was made only when the next one begins, or when somebody asks; the step count and the
/// schedules wait for that.
class ScheduledUpdates {
 public:
  struct Schedule {
    LRSchedulerConfig config;
    Scheduler scheduler;
    bool plateau;
  };
  ScheduledUpdates(Run& run, Optimization& optimization, std::shared_ptr<torch::optim::Optimizer> own,
                   Optimizer prepared)
      : optimization(&optimization), own(std::move(own)), prepared(std::move(prepared)), run_(&run) {}
  /// Number of updates made. The host waits if the last step is not known yet.
  int64_t made_steps() { return wait_for_step(), steps; }
  /// Notes that a step() of `prepared` has returned.
  void note_step();
  /// Counts the last step if it was made, and steps the schedules that wait for it.
  void wait_for_step();
  /// As wait_for_step(), if schedulers wait for the step.
  void step_deferred_schedulers() {
    if (schedulers_deferred) wait_for_step();
  }
  /// Called at the end of a batch: steps the schedules that are due, now or when the last step is known.
  void step_schedules(bool epoch_ends);

  Optimization* optimization;
  std::shared_ptr<torch::optim::Optimizer> own;
  Optimizer prepared;
  std::vector<Schedule> schedules = {};
  int64_t steps = 0;                 // counted steps
  int64_t plateau_steps = 0;         // counted steps when the plateau schedules last looked
  bool made_update = false;          // an update was made in this batch, and the schedules have not followed yet
  bool pending = false;              // the last step is not counted yet
  bool schedulers_deferred = false;  // schedules wait until the last step is known

 private:
  void step_due_schedules(bool after_update, bool epoch_ends);

  Run* run_;
};

// Why: docs/decisions/0118-a-module-goes-from-one-trainer-to-another.md.

/// What a Trainer has prepared: the model of a module, and its optimizers. The module keeps a reference to this object,
/// so that another Trainer can take the module over.
struct Preparation {
  const TrainerModule* module = nullptr;  ///< module that `model` was made from
  Model<torch::nn::Module> model = {};
  std::vector<std::unique_ptr<ScheduledUpdates>> updates = {};  ///< those of each optimizer
  std::vector<ModuleOptimizer> handles = {};                    ///< handles of the optimizers
  std::vector<Scheduler> schedulers = {};                       ///< schedulers of all optimizers

  /// Waits until it is known whether the last step of each optimizer was made, and counts it.
  void wait_for_steps();
  /// Number of optimizers whose last step is not counted yet.
  int64_t pending_steps() const;
  void drop_optimizers();
  void drop();
  /// Throws: UsageError (MU446) if there is no model.
  const Model<torch::nn::Module>& required_model(const char* call) const;
  /// Releases the module with its full parameters. Collective: where parameters are sharded. Throws: as
  /// runtime::release_model().
  void release();
};

}  // namespace muster::trainer
