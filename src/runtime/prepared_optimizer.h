#pragma once

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "accumulation.h"
#include "joined_steps.h"
#include "model_registry.h"
#include "muster/comm/communicator.h"
#include "muster/optim/clip.h"
#include "muster/precision/grad_scaler.h"
#include "muster/runtime/optimizer.h"
#include "muster/track/trace.h"
#include "muster/tree/state.h"
#include "optim/fused.h"
#include "runtime/loss_scale.h"
#include "runtime/saved_tensors.h"
#include "runtime/step_decision.h"

namespace muster::runtime {

class PreparedOptimizer;
using PreparedOptimizers = std::vector<std::weak_ptr<PreparedOptimizer>>;

/// Data that all optimizers of one runtime share.
struct OptimizerContext {
  std::shared_ptr<Accumulation> accumulation;
  std::shared_ptr<const JoinedSteps> joined;
  std::function<void(Optimizer&)> after_step;
  std::function<void()> before_reduction;  ///< called before a reduction of gradients for which this rank has no loss
  std::function<void(c10::Error&)> add_error_context = {};  ///< handler of LibTorch's errors in a step
  comm::Communicator group;
  std::shared_ptr<const PreparedOptimizers> optimizers;  ///< all optimizers of the runtime
  std::shared_ptr<ModelRegistry> registry;
  std::optional<GradScalerOptions> scaling;  ///< set if losses are scaled
  bool needs_found_inf_at_once = false;      ///< a caller needs to know at once whether each step was made
  std::shared_ptr<Trace> trace;
};

/// The state of an Optimizer handle. The model that owns each parameter is looked up at the first step, so that models
/// and optimizers may be prepared in any order.
class PreparedOptimizer : public std::enable_shared_from_this<PreparedOptimizer> {
 public:
  PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, OptimizerContext context);
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// The implementation of muster::evaluates_closure().
  bool evaluates_closure() const;
  void add_error_context(c10::Error& error) const {
    if (context_.add_error_context) context_.add_error_context(error);
  }
  void zero_grad(bool set_to_none);
  /// On a rank without a batch: makes the step that other ranks have announced.
  void follow_step(const State& group_options);
  /// As zero_grad(), at any place in a window; other ranks are not told.
  void clear_gradients(bool set_to_none);
  /// The implementation of Optimizer::add_param_group().
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Called after a model was prepared: finds the parameters of the optimizer that it holds, and shards their optimizer
  /// state in the same way.
  /// Throws: UsageError (MU134) if the optimizer needs full parameters and some are sharded.
  void bind_models() { bind(/*require_all=*/false); }
  /// Called before and after a backward.
  void before_backward();
  void after_backward() { fused_.note_backward(); }
  /// Whether a step has used the current gradients, so that they no longer wait for one.
  bool gradients_are_used() const noexcept { return gradients_used_; }
  /// Notes that gradients were loaded that wait for a step. `reduced`: they are already summed over all ranks.
  void note_loaded_gradients(bool reduced);
  /// Takes part in the reductions that the other ranks' backward waits for, if the loss of this rank did not use a
  /// model that holds any of these parameters (nullptr: any of the optimizer's). Must be called first in every function
  /// that uses gradients and that all ranks call. Does nothing before the last micro-batch of a window, nor for a model
  /// that had a reduction since the last step. If the backward that this rank missed reduced other models, too, they
  /// are reduced in the order of that backward, except those reduced since the last step of any optimizer.
  /// Throws: as backward. Collective: if a reduction is missing.
  void join_other_ranks(const std::vector<at::Tensor>* of = nullptr);
  /// Whether any parameter of the models that this optimizer steps has a gradient.
  bool models_have_gradients() const { return models_.have_gradients(parameters()); }
  /// Whether the last step was skipped; the host waits if this is not known yet.
  bool step_was_skipped();
  /// False while the device has yet to decide whether the last step is made: see StepDecision.
  bool found_inf_is_ready() const noexcept { return !decision_.pending(); }
  /// Waits until it is known whether the last step was made, then updates the state that depends on it.
  /// Throws: UsageError (MU175) for a norm that had to be finite; (MU318) if the loss scale fell too low.
  void wait_for_step();
  /// Registers a call for when it is known whether the last step was made.
  void when_found_inf_is_ready(std::function<void()> call) { decision_.then(std::move(call)); }
  /// Schedulers that wait for found_inf of the last step make their steps now; the host waits for it if there are any.
  void step_deferred_schedulers() {
    if (decision_.has_calls()) wait_for_step();
  }
  /// Notes the norm of unscaled gradients, some of which are the optimizer's.
  void note_norm(const GradNorm& norm);
  /// Skips the next step if `bad` is true on this rank; in local SGD, on any rank. Returns whether a rank is bad.
  /// Collective: in local SGD.
  bool skip_next_if(bool bad);
  /// Skips the next step if this norm of gradients, on a device, is not finite; in local SGD, on any rank. `reports`:
  /// wait_for_step() then throws. Collective: in local SGD.
  void skip_if_not_finite(const at::Tensor& norm, double order, bool reports);

  /// The state of the scaler; nullopt if losses are not scaled. The host waits if the last step is not known yet.
  std::optional<GradScalerState> scaler_state();
  /// Requires: losses are scaled.
  void load_scaler_state(const GradScalerState& state);
  /// The scale of the next loss; nullopt if losses are not scaled. Never waits.
  std::optional<LossScale> loss_scale();
  /// Called before a loss is scaled by `scale`: rescales existing gradients whose losses had another scale.
  void rescale_gradients(const LossScale& scale);
  /// Divides gradients by the scale they were made with, unless that was done already, and checks whether they are
  /// finite on this rank.
  void unscale();

  /// Options and state as muster::state_dict() returns them, the state of the scaler, and the scale of gradients that
  /// wait for a step. Sharded tensors go to `shards`, under names that begin with `path`.
  State state_dict(const std::string& path, std::vector<TensorShard>& shards);
  /// Checks the whole state without changing anything; the returned function loads it, and the next step accepts it.
  std::function<void()> prepare_load(const State& state, const TensorReader& reader);

  torch::optim::Optimizer& inner() const { return *inner_; }
  const std::shared_ptr<torch::optim::Optimizer>& owner() const { return inner_; }
  std::vector<at::Tensor> parameters() const;

 private:
  /// `require_all`: every parameter must have a model by now.
  void bind(bool require_all);
  bool bind_parameter(const at::Tensor& parameter, size_t index, bool require_all);
  std::optional<at::Device> device_of_parameters() const;
  bool has_gradients() const;
  /// Whether ranks hold shards of the parameters, so that they may find different things in their gradients.
  bool ranks_have_shards() const;
  bool gradients_are_local() const;
  bool steps_locally() const;
  /// Compares the operations that the ranks gave their devices, before gradients reduced by these are used. Not called
  /// at the end of backward: ranks whose loss did not use a model have yet to reduce then. Collective.
  void require_same_device_operations() const;
  /// Steps or skips with the gradients that the ranks have reduced. Returns the closure's loss, and whether the step
  /// was made, as far as it is known.
  std::pair<at::Tensor, bool> use_gradients(const torch::optim::Optimizer::LossClosure& closure);
  void announce(const char* what, const std::function<State::Map()>& arguments) const;
  /// Makes the update. A device that decides about it skips it if `flag` is set.
  at::Tensor update(const torch::optim::Optimizer::LossClosure& closure, const at::Tensor& flag);
  void for_each_other(const std::function<void(optim::FusedStep&)>& f) const;

  std::shared_ptr<torch::optim::Optimizer> inner_;
  OptimizerContext context_;
  optim::FusedStep fused_;
  OptimizerModels models_;
  int64_t bound_generation_ = -1;       // generation of the registry when the parameters were last bound
  std::optional<LossScaling> scaling_;  // set if losses are scaled
  StepDecision decision_;
  bool checked_local_ = false;   // unscale() has checked gradients that were not reduced over the ranks
  bool gradients_used_ = false;  // a step has used the gradients
};

}  // namespace muster::runtime
