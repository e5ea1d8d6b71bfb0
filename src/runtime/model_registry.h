#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "parallel/reduction_record.h"
#include "runtime/prepared_model.h"

namespace muster::runtime {

using parallel::ReductionRecord;

/// The models of one runtime, in which optimizers find the model of each parameter. Models are only added.
class ModelRegistry {
 public:
  void add(const std::shared_ptr<PreparedModel>& model);
  /// The models that still exist, in the order in which they were prepared.
  std::vector<std::shared_ptr<PreparedModel>> models() const;
  std::shared_ptr<PreparedModel> find(const torch::nn::Module& module) const;
  /// Throws: UsageError (MU581) if an existing model trains a parameter of this module or has laid it out: both would
  /// communicate or move it independently.
  void require_unshared(const torch::nn::Module& module) const;
  /// Changes when a model is added.
  int64_t generation() const noexcept { return generation_; }
  /// Called at the end of an optimizer step, even if it changed nothing.
  void note_step() { start_steps(reductions_->step() + 1); }
  /// Sets the number of the current step. Requires: every rank does so at the same point of the program.
  void start_steps(int64_t at) { reductions_->set_step(at); }
  /// The gradient reductions of all models; index_of() gives a model's index in them.
  ReductionRecord& reductions() const noexcept { return *reductions_; }
  int64_t index_of(const PreparedModel& model) const;
  /// nullptr if the model no longer exists.
  std::shared_ptr<PreparedModel> at(int64_t index) const;

 private:
  std::vector<std::weak_ptr<PreparedModel>> models_;
  int64_t generation_ = 0;
  std::shared_ptr<ReductionRecord> reductions_ = std::make_shared<ReductionRecord>();
};

/// The models whose parameters one optimizer steps, and which of their gradients' reductions its next step still needs.
/// Thread safety: one thread at a time.
class OptimizerModels {
 public:
  /// `ranks`: the number of ranks that reduce gradients together.
  OptimizerModels(std::shared_ptr<ModelRegistry> registry, int ranks) : registry_(std::move(registry)), ranks_(ranks) {}

  /// Whether one of these models holds the parameter.
  bool hold(const at::Tensor& parameter) const;
  /// Adds the model of the registry that holds the parameter, and returns it; nullptr if there is none.
  std::shared_ptr<PreparedModel> add_holder_of(const at::Tensor& parameter);

  /// Whether any of them reduces its gradients over the ranks now.
  bool any_reduces() const;
  /// Whether any of them keeps its gradients local, as local SGD does.
  bool any_local() const;
  /// Whether any of them has gradients of the optimizer's parameters.
  bool have_gradients(const std::vector<at::Tensor>& parameters) const;

  /// Takes part in the reductions that the other ranks' backward waits for, of models that hold any of these parameters
  /// (nullptr: of all) and had no reduction since note_reductions(). If the backward that this rank missed reduced
  /// other models, too, they are reduced in the order of that backward, except those reduced since the last step of any
  /// optimizer. Calls `before` first, if there is such a function.
  /// Throws: as backward. Collective: if a reduction is missing.
  void join_other_ranks(const std::vector<at::Tensor>* of, const std::function<void()>& before);
  /// A step begins: remembers the order of reductions in the backward that it uses.
  void note_orders();
  /// The reductions made so far are used, or their gradients were cleared: the next step needs others.
  void note_reductions();
  /// Gradients were loaded that wait for a step. `reduced`: they are already summed over all ranks.
  void note_loaded_gradients(bool reduced);

 private:
  struct Use {
    std::shared_ptr<PreparedModel> model;
    int64_t reductions = 0;  ///< number of completed reductions when gradients were last used or cleared
    int64_t index = 0;       ///< index of the model in the registry
    std::shared_ptr<const ReductionRecord::Order>
        order;  ///< order of the reductions in the backward that the latest step used; nullptr: unknown
  };

  bool needs_reduction(const Use& use) const;
  bool needs_reduction_in_order(int64_t index) const;
  /// Repeats the reductions of these models in the order of the backward that this rank missed.
  void repeat_reductions(const ReductionRecord::Order& order);

  std::shared_ptr<ModelRegistry> registry_;
  int ranks_;
  std::vector<Use> models_;
};

}  // namespace muster::runtime
