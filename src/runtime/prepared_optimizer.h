#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "accumulation.h"
#include "model_registry.h"
#include "muster/comm/communicator.h"
#include "muster/optim/detail/fused.h"
#include "muster/precision/detail/grad_scaler.h"
#include "muster/runtime/detail/optimizer.h"
#include "muster/track/detail/trace.h"
#include "muster/tree/state.h"
#include "sharded_tensors.h"

namespace muster::runtime {

class PreparedOptimizer;
using PreparedOptimizers = std::vector<std::weak_ptr<PreparedOptimizer>>;

/// What all optimizers of one runtime share.
struct OptimizerContext {
  std::shared_ptr<Accumulation> accumulation;
  std::function<void(Optimizer&)> after_step;
  std::function<void()> before_reduction;  ///< before a reduction of gradients for which this rank has no loss
  comm::Communicator group;
  std::shared_ptr<const PreparedOptimizers> optimizers;  ///< all of them
  std::shared_ptr<ModelRegistry> registry;
  std::optional<GradScalerOptions> scaling;  ///< set if losses are scaled
  std::shared_ptr<Trace> trace;
};

/// The state of an Optimizer handle. The model that owns each parameter is looked up at the first step, so that models
/// and optimizers may be prepared in any order.
class PreparedOptimizer : public std::enable_shared_from_this<PreparedOptimizer> {
 public:
  PreparedOptimizer(std::shared_ptr<torch::optim::Optimizer> inner, OptimizerContext context);
  at::Tensor step(torch::optim::Optimizer::LossClosure closure);
  void zero_grad(bool set_to_none);
  /// As Optimizer::add_param_group().
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Called after a model was prepared: finds the parameters of the optimizer that it holds, and shards their state as
  /// they are sharded.
  /// Throws: UsageError (MU134) if the optimizer needs full parameters and some are sharded.
  void bind_models() { bind(/*complete=*/false); }
  /// Called before and after a backward.
  void before_backward();
  void after_backward() { fused_.note_backward(); }
  /// Call it first in every function that uses gradients and that all ranks call. If the loss of this rank did not use
  /// a model that holds any of these parameters (nullptr: any of the optimizer's), the rank takes part in the
  /// reductions that the others' backward waits for. Does nothing before the last micro-batch of a window, nor for a
  /// model that had a reduction since the last step. Other models that the loss of its latest step used are reduced
  /// too, in the order of that step, unless they were reduced since any optimizer stepped.
  /// Throws: as backward. Collective: if a reduction is missing.
  void join_other_ranks(const std::vector<at::Tensor>* of = nullptr);
  /// Whether some parameter of a model that this optimizer steps has a gradient.
  bool models_have_gradients() const;
  bool step_was_skipped() const noexcept { return skipped_; }
  /// If one of these parameters is the optimizer's, the next step updates nothing.
  void skip_if_holding(const std::vector<at::Tensor>& parameters);

  /// The scaler; nullptr if losses are not scaled.
  precision::GradScaler* scaler() noexcept { return scaler_ ? &*scaler_ : nullptr; }
  /// Called before a loss is scaled by `scale`: rescales existing gradients of losses that were scaled otherwise.
  void rescale_gradients(double scale);
  /// Divides gradients by the scale they were made with, once.
  void unscale();

  /// Options and state as muster::state_dict() gives them, the state of the scaler, and the scale of gradients that
  /// wait for a step. Sharded tensors go to `shards`, under names that begin with `path`.
  State state_dict(const std::string& path, std::vector<TensorShard>& shards) const;
  /// Checks everything now and changes nothing; the returned function loads the state, and the next step accepts it.
  std::function<void()> prepare_load(const State& state, const TensorReader& reader);

  torch::optim::Optimizer& inner() const { return *inner_; }
  const std::shared_ptr<torch::optim::Optimizer>& owner() const { return inner_; }
  std::vector<at::Tensor> parameters() const;

 private:
  struct ModelUse {
    std::shared_ptr<PreparedModel> model;
    int64_t reductions = 0;  ///< reductions that had ended when gradients were last used or cleared
    int64_t index = 0;       ///< in the registry
    std::shared_ptr<const parallel::ReductionRecord::Order>
        order;  ///< of the backward that the latest step used; nullptr: unknown
  };

  void bind(bool complete);
  bool bind_parameter(const at::Tensor& parameter, size_t index, bool complete);
  void shard_state(const PreparedModel& model);
  bool gradients_are_finite();
  /// Before gradients that devices have reduced are used: not at the end of backward, after which ranks whose loss did
  /// not use a model still have to reduce. Collective.
  void require_same_device_operations() const;
  bool needs_reduction(const ModelUse& use) const;
  /// Repeats the reductions of these models in the order of the backward that this rank missed.
  void repeat_reductions(const parallel::ReductionRecord::Order& order);
  bool needs_reduction_in_order(int64_t index) const;
  /// Reductions up to now do not count for the next step.
  void note_reductions();
  at::Tensor update(const torch::optim::Optimizer::LossClosure& closure);
  void for_each_other(const std::function<void(optim::FusedOptimizer&)>& f) const;

  std::shared_ptr<torch::optim::Optimizer> inner_;
  OptimizerContext context_;
  optim::FusedOptimizer fused_;
  std::vector<ModelUse> models_;
  int64_t bound_generation_ = -1;
  std::optional<precision::GradScaler> scaler_;
  double loss_scale_ = 1;      // the scale of the last backward
  double gradient_scale_ = 1;  // the factor by which gradients are too large
  bool skip_next_ = false;
  bool skipped_ = false;
  bool unscaled_ = false;
};

}  // namespace muster::runtime
