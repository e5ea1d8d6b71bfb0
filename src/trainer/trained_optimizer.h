#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "muster/runtime/detail/runtime.h"
#include "muster/trainer/detail/optimizers.h"

namespace muster::trainer {

class Core;

/// An optimizer in a run, with its schedulers.
class TrainedOptimizer {
 public:
  struct Schedule {
    LRSchedulerConfig config;
    Scheduler scheduler;
    bool plateau;
  };
  TrainedOptimizer(Core& core, std::shared_ptr<torch::optim::Optimizer> own, Optimizer prepared)
      : core(&core), own(std::move(own)), prepared(std::move(prepared)) {}
  Core* core;
  std::shared_ptr<torch::optim::Optimizer> own;
  Optimizer prepared;
  std::vector<Schedule> schedules = {};
  int64_t steps = 0;
  int64_t plateau_steps = 0;  // when schedules that watch a metric by steps looked last
};

}  // namespace muster::trainer
