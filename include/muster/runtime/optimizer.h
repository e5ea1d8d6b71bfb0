#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <torch/optim/optimizer.h>

#include "muster/base/handle.h"

namespace muster {

class LRScheduler;
struct GradScalerState;
namespace runtime {
class PreparedOptimizer;
struct PreparedScheduler;
class SavedScheduler;
}  // namespace runtime

/// A prepared optimizer: steps the user's optimizer on parameters and gradients where the strategy keeps them.
/// A cheap handle to shared state. Thread safety: one thread at a time.
/// The user's own optimizer may still be used to read and write options (`adam.param_groups()`, schedulers). If its
/// step() is called, the next call on this handle throws MU133.
/// A default-constructed handle is empty until the result of prepare() is assigned to it.
/// Throws: UsageError (MU322), from every function, if the handle is empty.
class Optimizer {
 public:
  /// An empty handle.
  Optimizer() = default;
  /// The handle that prepare() returns.
  explicit Optimizer(std::shared_ptr<runtime::PreparedOptimizer> prepared);
  /// Whether the handle is not empty.
  explicit operator bool() const noexcept { return static_cast<bool>(prepared_); }

  /// Makes one update; before the last micro-batch of an accumulation window it does nothing. Where losses are
  /// scaled ("16-mixed") gradients are unscaled first, and all ranks skip the update if some gradients are not finite;
  /// so they do after a clipping with ClipOptions::skip_if_nonfinite. With a closure (LBFGS), the loss that it returns
  /// is averaged over ranks, so that the search takes one course on all ranks. If a rank's loss did not use a model of
  /// the optimizer, backward on this rank communicates no gradients of that model. The rank then takes part in the
  /// other ranks' gradient communication in this call, or in the clipping or unscaling before: with zeros if unused
  /// parameters are allowed; otherwise all ranks get MU152. Not under "fsdp". Collective: every rank makes equal steps.
  /// Throws: UsageError (MU146) for a closure under "16-mixed"; (MU152) as backward.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);
  /// Clears gradients: they become undefined by default, or zeros in place. Does nothing from the first backward of an
  /// accumulation window to its last micro-batch. If losses are scaled and clipping found a norm that is infinite or
  /// NaN, and no step has used the gradients since, the scale shrinks as in a step that is skipped. Throws: UsageError
  /// (MU318) if the scale fell too low; (MU175) for a norm on a device that had to be finite.
  void zero_grad(bool set_to_none = true);
  /// Adds a group of parameters, with its own options or the optimizer's defaults, as LibTorch's add_param_group does.
  /// The parameters may still be frozen. Other groups and their state do not change. A scheduler of Muster must be
  /// created after the last group of its optimizer (MU137). Collective: every rank adds an equal group.
  /// Throws: UsageError (MU332) for a parameter that is in a group already, or for LBFGS; (MU333) for options of
  /// another class than the optimizer's; ConfigError (MU150) on every rank if ranks add different groups.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Whether the last step() that was not within a window updated nothing because gradients were infinite or NaN. A
  /// device decides this itself: the host learns it at the beginning of the next step, or waits for it in this
  /// function, scaler_state() or a save. With a custom update() or step(), or with callbacks, each step waits for it.
  /// See docs/decisions/0142-a-step-is-known-when-the-next-one-begins.md.
  bool step_was_skipped() const;

  /// The state of the loss scale; nullopt unless losses are scaled.
  std::optional<GradScalerState> scaler_state() const;
  /// Sets the state of the loss scale.
  /// Throws: ConfigError (MU147) if losses are not scaled, or for a scale that is not positive and finite or a negative
  /// count.
  void load_scaler_state(const GradScalerState& state);

  /// The groups of parameters of the user's optimizer, with their options.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  /// The user's optimizer, for its options and its state.
  torch::optim::Optimizer* operator->() const;
  /// The user's optimizer, for its options and its state.
  torch::optim::Optimizer& operator*() const { return inner(); }
  /// The user's optimizer, for its options and its state.
  torch::optim::Optimizer& inner() const;
  /// The prepared optimizer, for Muster's internal functions.
  const std::shared_ptr<runtime::PreparedOptimizer>& prepared() const { return prepared_.pointer(); }

 private:
  Shared<HandleType::optimizer, runtime::PreparedOptimizer> prepared_;
};

/// A prepared learning-rate scheduler, Muster's or LibTorch's. Call step() as often as the optimizer's: it steps once
/// per actual update, for any world size; not before the end of an accumulation window, and not after a skipped update.
/// While it is unknown whether the update was skipped, as on a device under loss scaling, the step is delayed until it
/// is known, which is before the next update.
/// A default-constructed handle is empty until the result of prepare() is assigned to it.
/// Throws: UsageError (MU322), from every function, if the handle is empty.
class Scheduler {
 public:
  /// An empty handle.
  Scheduler() = default;
  /// The handle that prepare() returns.
  explicit Scheduler(std::shared_ptr<runtime::PreparedScheduler> prepared);
  /// Whether the handle is not empty.
  explicit operator bool() const noexcept { return static_cast<bool>(prepared_); }

  /// Makes one step of the schedule, if the optimizer has made its update.
  /// Throws: UsageError (MU180) for a scheduler that needs a metric.
  void step() const;
  /// Makes one step of ReduceLROnPlateau, Muster's or LibTorch's. The metric is averaged over ranks, so that all ranks
  /// get equal learning rates.
  /// Collective. Throws: UsageError (MU180) for a scheduler that does not take a metric.
  void step(double metric) const;
  /// Replaces the option step_scheduler_with_optimizer for this scheduler: off, step() always steps, by one.
  void set_step_with_optimizer(bool on) const;
  /// The user's scheduler, for its rates and its state.
  /// Throws: UsageError (MU325) for a scheduler of LibTorch, which exposes neither.
  LRScheduler* operator->() const { return &**this; }
  /// The user's scheduler, for its rates and its state. Throws: UsageError (MU325) for a scheduler of LibTorch.
  LRScheduler& operator*() const;
  /// The user's scheduler; nullptr for a scheduler of LibTorch.
  const std::shared_ptr<LRScheduler>& inner() const;
  /// The part of the scheduler that checkpoints save.
  const std::shared_ptr<const runtime::SavedScheduler>& saved() const;
  /// The prepared scheduler, for Muster's internal functions.
  runtime::PreparedScheduler& prepared() const { return *prepared_; }

 private:
  Shared<HandleType::scheduler, runtime::PreparedScheduler> prepared_;
};

}  // namespace muster
