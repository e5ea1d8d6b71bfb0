#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace muster {

namespace trainer {
class Optimization;
class TrainedOptimizer;
}  // namespace trainer

/// An optimizer of a TrainerModule during a run. A cheap handle, valid until the run ends.
/// Thread safety: one thread at a time.
class ModuleOptimizer {
 public:
  using Closure = std::function<at::Tensor()>;
  explicit ModuleOptimizer(trainer::TrainedOptimizer& trained) : trained_(&trained) {}

  /// Makes one update, after the hooks before it. In automatic optimization it must be given the closure of
  /// optimizer_step(), which runs training_step() and backward(). Returns the loss of the closure; undefined without a
  /// closure.
  /// Collective. Throws: UsageError (MU448) without a closure in automatic optimization; as Optimizer::step().
  at::Tensor step(const Closure& closure = nullptr) const;
  void zero_grad(bool set_to_none = true) const;
  /// The number of updates so far. On a device under loss scaling, waits until it is known whether the last step was
  /// skipped.
  int64_t steps() const;
  /// The user's parameter groups. If a schedule waits for the last step, this function waits as steps() does.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() const;
  /// The user's optimizer, for its options and its state. Waits as steps() does.
  torch::optim::Optimizer& inner() const;
  torch::optim::Optimizer* operator->() const { return &inner(); }

 private:
  friend class trainer::Optimization;
  trainer::TrainedOptimizer* trained_;
};

/// Makes parameters that belong only to other optimizers require no gradients while it lives.
class [[nodiscard("name the scope: auto only = toggled_optimizer(g)")]] ToggledOptimizer {
 public:
  ToggledOptimizer(const ModuleOptimizer& one, const std::vector<ModuleOptimizer>& all);
  ToggledOptimizer(const ToggledOptimizer&) = delete;
  ToggledOptimizer& operator=(const ToggledOptimizer&) = delete;
  ~ToggledOptimizer();

 private:
  std::vector<at::Tensor> frozen_;
};

}  // namespace muster
