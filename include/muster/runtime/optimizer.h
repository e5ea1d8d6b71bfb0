#pragma once

#include "muster/precision/options.h"

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace muster {

class LRScheduler;
namespace runtime {
class PreparedOptimizer;
class SavedScheduler;
}

/// A prepared optimizer: the user's own, stepped where the strategy keeps parameters and gradients.
/// A cheap handle to shared state. Thread safety: one thread at a time.
/// The user's own handle stays good for reading and writing options (`adam.param_groups()`, schedulers);
/// calling its step() is an error at the next call here (MU133).
class Optimizer {
 public:
  explicit Optimizer(std::shared_ptr<runtime::PreparedOptimizer> prepared);

  /// One update; nothing while an accumulation window goes on. Under "16-mixed" gradients are unscaled first, and the update
  /// is skipped, on all ranks alike, where some are not finite. With a closure (LBFGS), the loss it returns is averaged over
  /// ranks, so that all ranks search alike.
  /// A rank whose loss missed a model of the optimizer has no gradients to communicate in backward. It takes part in the others' here, or
  /// in the clipping or unscaling before: with zeros where unused parameters are allowed, else all ranks get MU152. Not under "fsdp".
  /// Collective: every rank makes the same steps.
  /// Throws: UsageError (MU146) for a closure under "16-mixed"; (MU152) as backward.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);
  /// Forgets gradients: undefined by default, or zeros in place. Nothing while an accumulation window goes on.
  void zero_grad(bool set_to_none = true);
  /// The last step() updated nothing, because gradients were infinite or not a number.
  bool step_was_skipped() const;

  /// The loss scale; nothing but under "16-mixed".
  std::optional<GradScalerState> scaler_state() const;
  /// Throws: ConfigError (MU147) where losses are not scaled, or for a state that is none.
  void load_scaler_state(const GradScalerState& state);

  std::vector<torch::optim::OptimizerParamGroup>& param_groups();
  /// The user's optimizer, for its options and its state.
  torch::optim::Optimizer* operator->() const;
  torch::optim::Optimizer& inner() const;
  const std::shared_ptr<runtime::PreparedOptimizer>& prepared() const { return prepared_; }

 private:
  std::shared_ptr<runtime::PreparedOptimizer> prepared_;
};

/// A prepared learning-rate scheduler of LibTorch. Call step() as often as the optimizer's: it steps once per update that was
/// made, whatever the world size; neither inside an accumulation window nor after a skipped update.
class Scheduler {
 public:
  /// What step() and step(metric) do; one of the two is empty.
  Scheduler(std::function<void()> step, std::function<void(double)> step_by_metric, std::shared_ptr<const runtime::SavedScheduler> saved,
            std::shared_ptr<LRScheduler> inner = nullptr)
      : step_(std::move(step)), step_by_metric_(std::move(step_by_metric)), saved_(std::move(saved)), inner_(std::move(inner)) {}
  /// Throws: UsageError (MU180) for a scheduler that wants a metric.
  void step() const;
  /// For ReduceLROnPlateau, ours or LibTorch's: the metric is averaged over ranks, so that all change their rate alike.
  /// Collective. Throws: UsageError (MU180) for a scheduler that wants none.
  void step(double metric) const;
  /// The user's scheduler, for its rates and its state; nullptr for one of LibTorch's, which has neither.
  const std::shared_ptr<LRScheduler>& inner() const noexcept { return inner_; }
  /// What is saved of it.
  const std::shared_ptr<const runtime::SavedScheduler>& saved() const noexcept { return saved_; }

 private:
  std::function<void()> step_;
  std::function<void(double)> step_by_metric_;
  std::shared_ptr<const runtime::SavedScheduler> saved_;
  std::shared_ptr<LRScheduler> inner_;
};

}  // namespace muster
