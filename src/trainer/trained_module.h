#pragma once

#include <memory>
#include <vector>

#include "muster/runtime/model.h"
#include "muster/trainer/module.h"
#include "trained_optimizer.h"

namespace muster::trainer {

// Why: docs/decisions/0118-a-module-goes-from-one-trainer-to-another.md.

/// The module that a Trainer has prepared, and its optimizers. The module keeps a reference to this object, so that
/// another Trainer can take the module over.
struct TrainedModule {
  const TrainerModule* module = nullptr;  ///< module that `model` was made from
  Model<torch::nn::Module> model = {};
  std::vector<std::unique_ptr<TrainedOptimizer>> optimizers = {};
  std::vector<ModuleOptimizer> handles = {};  ///< handles of `optimizers`
  std::vector<Scheduler> schedulers = {};     ///< schedulers of all optimizers

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
