#pragma once

#include "accumulation.h"
#include "model_registry.h"
#include "sliced_state.h"

#include "muster/base/trace.h"
#include "muster/dist/communicator.h"
#include "muster/optim/fused.h"
#include "muster/precision/grad_scaler.h"
#include "muster/runtime/optimizer.h"
#include "muster/tree/state.h"

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace muster::runtime {

class PreparedOptimizer;
using PreparedOptimizers = std::vector<std::weak_ptr<PreparedOptimizer>>;

/// What the optimizers of one runtime have in common.
struct OptimizerSetting {
  std::shared_ptr<Accumulation> accumulation;
  std::function<void(Optimizer&)> after_step;
  std::function<void()> before_round;         ///< of gradients that this rank has no loss for
  dist::Communicator group;
  std::shared_ptr<const PreparedOptimizers> optimizers;   ///< all of them
  std::shared_ptr<ModelRegistry> registry;
  std::optional<GradScalerOptions> scaling;   ///< losses are scaled
  std::shared_ptr<Trace> trace;
};

/// The state of an Optimizer handle. Which model holds which of its parameters is looked up at the first step,
/// so that models and optimizers may be prepared in any order.
class PreparedOptimizer : public std::enable_shared_from_this<PreparedOptimizer> {
 public:
  PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, OptimizerSetting setting);
  at::Tensor step(torch::optim::Optimizer::LossClosure closure);
  void zero_grad(bool set_to_none);
  /// A model was prepared: what it holds of the optimizer's parameters is found, and state that was there is cut as they are.
  /// Throws: UsageError (MU134) if the optimizer needs parameters whole that are not.
  void follow_models() { bind(/*complete=*/false); }
  /// A backward begins, or has ended.
  void before_backward();
  void after_backward() { fused_.note_backward(); }
  /// The first of what uses gradients after backward, where all ranks are sure to come: a rank whose loss missed a model that holds any of
  /// these parameters (nullptr: any of the optimizer's) takes part in what the others' backward waits for. Nothing in the middle of a
  /// window, nor where a round of the model has ended since the last step. Other models that the loss of this optimizer's latest step went
  /// through take part in the same order as there, unless they had a round since any optimizer stepped.
  /// Throws: as backward. Collective: where a round is missing.
  void meet_other_ranks(const std::vector<at::Tensor>* of = nullptr);
  bool step_was_skipped() const noexcept { return skipped_; }
  /// The next step updates nothing, if one of these parameters is the optimizer's.
  void skip_if_holding(const std::vector<at::Tensor>& parameters);

  /// The scaler; nullptr where losses are not scaled.
  precision::GradScaler* scaler() noexcept { return scaler_ ? &*scaler_ : nullptr; }
  /// A loss is about to be scaled by this: gradients that are there from a loss scaled otherwise follow.
  void follow_scale(double scale);
  /// Divides gradients by the scale they were made with, once.
  void unscale();

  /// Options and state as state_dict() gives them, the scaler's, and by what waiting gradients are scaled. What is cut over ranks goes
  /// to `slices`, under names that begin with `path`.
  State save_state(const std::string& path, std::vector<Slice>& slices) const;
  /// Checks everything now and changes nothing; the function that comes back loads, and the next step accepts it.
  std::function<void()> prepare_load(const State& state, const TensorReader& reader);

  torch::optim::Optimizer& inner() const { return *inner_; }
  const std::shared_ptr<torch::optim::Optimizer>& owner() const { return inner_; }
  std::vector<at::Tensor> parameters() const;

 private:
  struct Held {
    std::shared_ptr<PreparedModel> model;
    int64_t rounds = 0;   ///< that had ended when gradients were last used up or cleared
    int64_t place = 0;    ///< in the registry
    std::shared_ptr<const parallel::JobRounds::Order> order;   ///< of the backward that the latest step used; nullptr: unknown
  };

  void bind(bool complete);
  bool bind_parameter(const at::Tensor& parameter, size_t index, bool complete);
  void cut_state(const PreparedModel& model);
  bool gradients_are_finite();
  bool due(const Held& held) const;
  /// Rounds of these models as in the backward that this rank missed.
  void repeat_rounds(const parallel::JobRounds::Order& order);
  bool due_in_order(int64_t place) const;
  /// Rounds up to now do not count for the next step.
  void note_rounds();
  at::Tensor update(torch::optim::Optimizer::LossClosure closure);
  void for_each_other(const std::function<void(optim::FusedOptimizer&)>& f) const;

  std::shared_ptr<torch::optim::Optimizer> inner_;
  OptimizerSetting setting_;
  optim::FusedOptimizer fused_;
  std::vector<Held> models_;
  int64_t bound_generation_ = -1;
  std::optional<precision::GradScaler> scaler_;
  double loss_scale_ = 1;        // what the last backward scaled by
  double gradient_scale_ = 1;    // what the gradients are too large by
  bool skip_next_ = false;
  bool skipped_ = false;
  bool unscaled_ = false;
};

}  // namespace muster::runtime
