#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "accumulation.h"
#include "joined_steps.h"
#include "loss_scale.h"
#include "model_registry.h"
#include "muster/optim/clip.h"
#include "muster/runtime/options.h"
#include "muster/track/trace.h"
#include "prepared_optimizer.h"

/// Gradients of parameters, wherever models keep them; grad() for parameters that no model holds.
namespace muster::runtime {

void for_each_gradient(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters,
                       const std::function<void(const at::Tensor&)>& f);
/// Multiplies gradients, including those that are not communicated yet.
void scale_gradients(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double factor);
/// The p-norm of all these gradients together. Collective: if a model is sharded.
double gradient_norm(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters, double p);
/// Reports an infinite or NaN norm. `whose`: "this step". Throws: UsageError (MU175), always.
[[noreturn]] void refuse_norm(double norm, double order, std::string_view whose);
/// True if some of the parameters are sharded, so that ranks see different gradients.
bool any_sharded(const ModelRegistry& registry, const std::vector<at::Tensor>& parameters);

/// A runtime's processing of gradients from backward to the step, over all its models and optimizers: loss scales,
/// clipping, and reductions on ranks whose loss did not use a model. Thread safety: one thread at a time.
class GradientProcessing {
 public:
  GradientProcessing(std::shared_ptr<Accumulation> accumulation, std::shared_ptr<const JoinedSteps> joined,
                     std::shared_ptr<ModelRegistry> registry, std::shared_ptr<PreparedOptimizers> optimizers,
                     std::shared_ptr<Trace> trace, bool scales_losses)
      : accumulation_(std::move(accumulation)), joined_(std::move(joined)), registry_(std::move(registry)),
        optimizers_(std::move(optimizers)), trace_(std::move(trace)), scales_losses_(scales_losses) {}

  void backward(const at::Tensor& loss, bool retain_graph);
  GradNorm clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options);
  /// The implementation of Model::grad_norm() for a model with these parameters.
  GradNorm grad_norm(const std::vector<at::Tensor>& parameters);
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);
  /// Divides gradients by the scale of their loss, for the optimizers of these parameters; nullptr: for all optimizers.
  void unscale_gradients(const std::vector<at::Tensor>* of);
  bool optimizer_step_was_skipped() const;
  /// On a rank without a batch: does with its shards what other ranks have announced.
  void follow(const State& step);
  /// If this rank's loss did not use these parameters, takes part in the reductions of the ranks whose loss did.
  void join_other_ranks(const std::vector<at::Tensor>& parameters) const;
  /// As join_other_ranks(), for the models of this optimizer; returns whether they have gradients now.
  bool join_other_ranks(PreparedOptimizer& optimizer) const;
  /// Returns the current loss scale, and rescales gradients made with another one.
  LossScale rescale_to_loss_scale();
  void scale_all_gradients(double factor) const;
  void for_each_optimizer(const std::function<void(PreparedOptimizer&)>& f) const;

 private:
  void join_for_the_only_optimizer() const;
  LossScale loss_scale();
  /// Calls f with the optimizers that hold one of these parameters.
  void for_each_holder(const std::vector<at::Tensor>& parameters,
                       const std::function<void(PreparedOptimizer&)>& f) const;
  void note_norm(const std::vector<at::Tensor>& parameters, const GradNorm& norm) const;
  GradNorm clip_reduced(const std::vector<at::Tensor>& parameters, double max_norm, const ClipOptions& options);
  GradNorm norm_of_reduced(const std::vector<at::Tensor>& parameters);
  void clip_reduced_values(const std::vector<at::Tensor>& parameters, double clip_value);
  GradNorm clip_on_device(const std::vector<at::Tensor>& parameters, at::Device device, double max_norm,
                          const ClipOptions& options);

  std::shared_ptr<Accumulation> accumulation_;
  std::shared_ptr<const JoinedSteps> joined_;
  std::shared_ptr<ModelRegistry> registry_;
  std::shared_ptr<PreparedOptimizers> optimizers_;
  std::shared_ptr<Trace> trace_;
  SmallestScale smallest_;
  bool scales_losses_;
};

class RuntimeState;

/// The implementation of Model::grad_norm(). Requires: the module exists at every call.
/// Throws, when called: UsageError (MU324) if the runtime no longer exists.
std::function<GradNorm()> grad_norm_of(const torch::nn::Module& module, std::weak_ptr<RuntimeState> state);

}  // namespace muster::runtime
