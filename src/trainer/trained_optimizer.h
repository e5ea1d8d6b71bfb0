#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "muster/runtime.h"
#include "muster/trainer/optimizers.h"

namespace muster::trainer {

class Core;

/// An optimizer in a run, with its schedulers. On a device under loss scaling, whether a step was made is known when
/// the next one begins, or when somebody asks; the count of steps and the schedules that follow it wait for that.
class TrainedOptimizer {
 public:
  struct Schedule {
    LRSchedulerConfig config;
    Scheduler scheduler;
    bool plateau;
  };
  TrainedOptimizer(Core& core, std::shared_ptr<torch::optim::Optimizer> own, Optimizer prepared)
      : core(&core), own(std::move(own)), prepared(std::move(prepared)) {}
  /// Updates that were made. The host waits where that of the last step is not known yet.
  int64_t made_steps() { return wait_for_step(), steps; }
  /// A step() of `prepared` has returned.
  void note_step();
  /// Counts the last step if it was made, and steps the schedules that wait for it.
  void wait_for_step();
  /// The same, if schedulers wait for it.
  void step_deferred_schedulers() {
    if (schedulers_deferred) wait_for_step();
  }
  /// At the end of a batch: steps what is due, now or when the last step is known.
  void step_schedules(bool epoch_ends);

  Core* core;
  std::shared_ptr<torch::optim::Optimizer> own;
  Optimizer prepared;
  std::vector<Schedule> schedules = {};
  int64_t steps = 0;                 // that are counted
  int64_t plateau_steps = 0;         // when schedules that watch a metric by steps looked last
  bool updated = false;              // in this batch, and its schedules have not followed
  bool pending = false;              // the last step is not counted yet
  bool schedulers_deferred = false;  // until the last step is known

 private:
  void step_due_schedules(bool after_update, bool epoch_ends);
};

}  // namespace muster::trainer
