#pragma once

#include <memory>
#include <vector>

#include "muster/runtime/model.h"
#include "muster/trainer/module.h"
#include "trained_optimizer.h"

namespace muster::trainer {

/// The module that a Trainer has prepared, and its optimizers. The module refers to it, so that another Trainer can
/// take the module over.
struct TrainedModule {
  const TrainerModule* module = nullptr;  ///< that `model` was made of
  Model<torch::nn::Module> model = {};
  std::vector<std::unique_ptr<TrainedOptimizer>> optimizers = {};
  std::vector<ModuleOptimizer> handles = {};  ///< of `optimizers`
  std::vector<Scheduler> schedulers = {};     ///< of all of them

  /// Waits until the last step of each optimizer is known, and counts it.
  void wait_for_steps();
  /// Optimizers whose last step is not counted yet.
  int64_t pending_steps() const;
  void drop_optimizers();
  void drop();
  /// Throws: UsageError (MU446) where there is none.
  const Model<torch::nn::Module>& required_model(const char* call) const;
  /// Gives the module up, whole. Collective: where parameters are sharded. Throws: as runtime::release_model().
  void release();
};

}  // namespace muster::trainer
