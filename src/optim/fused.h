#pragma once  // for other rooms

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "muster/optim/flat_parameters.h"
#include "optim/direct_step_watch.h"
#include "optim/plan.h"
#include "optim/rule.h"

namespace muster::optim {

/// Steps a LibTorch optimizer with LibTorch's fused kernels, using the optimizer's own options and state objects.
///
/// SGD, Adam, AdamW, Adagrad and RMSprop (exactly these types, not classes derived from them) run fused: one call per
/// group and per contiguous range of memory, every element in the kernel's vectorized loop. Optimizers derived from
/// ElementwiseOptimizer run their update() in this way, too. For other optimizers, and for a step in which a gradient
/// is sparse or a dtype differs, the optimizer's own step() runs. Both paths share one state, so they may alternate.
///
/// Repeated tensors in the groups (LibTorch's parameters() lists a tied weight twice) are removed from them when this
/// object is made and when groups have changed; otherwise a step would change such a tensor twice.
///
/// Options are read from inner.param_groups() at each step, so schedulers and direct edits work. inner.state() shows
/// LibTorch's state classes; their tensors have the parameter's shape and strides and are stored in flat memory. State
/// that existed before this object was made, or that was loaded later, is kept. Parameters without gradient are skipped
/// and not counted. A step marks the parameters as modified in place, as LibTorch's own steps do.
///
/// Thread safety: one thread at a time.
/// Why: docs/decisions/0041-the-reducer-and-the-fused-step.md.
class FusedOptimizer {
 public:
  /// Borrows both arguments. `flat_parameters` are searched in order; a parameter that none of them holds is updated in
  /// place.
  /// Requires: the optimizer and the flat parameters outlive this object.
  explicit FusedOptimizer(torch::optim::Optimizer& inner, std::vector<FlatParameters*> flat_parameters = {});
  FusedOptimizer(FusedOptimizer&&) noexcept = default;
  FusedOptimizer& operator=(FusedOptimizer&&) noexcept = default;

  /// Adds the flat parameters of a model that is prepared after its optimizer.
  void add_flat_parameters(FlatParameters& flat_parameters);

  /// Makes one update. Returns the loss of the closure, or an undefined tensor.
  /// Throws: UsageError (MU133) under the conditions of refuse_direct_step(); UsageError (MU134) if the optimizer's own
  /// step() is needed for a parameter of which this rank holds only a part.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Makes one update, or skips it if `found_inf` (float32, one element, on the device of the parameters) is 1: then
  /// only the count of steps changes, which undo_step_count() lowers again. Requires: takes_found_inf().
  void step_unless(const at::Tensor& found_inf);
  /// Whether a flag can skip the next step. It cannot if the step runs a custom update() or step(), or if momentum of
  /// SGD starts in it.
  bool takes_found_inf();
  /// Corrects the count of steps after the last step_unless() was skipped.
  void undo_step_count();

  /// Clears gradients: makes them undefined, or zeroes them in place. Throws: what refuse_direct_step() throws.
  void zero_grad(bool set_to_none = true);

  /// Records what refuse_direct_step() compares with. Call it at the end of each backward.
  void note_backward();

  /// Makes the next call accept parameters or inner.state() that were replaced on purpose, as by loading a checkpoint.
  /// Call it afterwards.
  void note_load();

  /// Throws: UsageError (MU133) if anyone but this object called inner.step() since the last call here. Detected by the
  /// step count in the state, by the versions of all parameters, or, for SGD on a CPU, by their values.
  void refuse_direct_step();

  /// Call these before and after a step of another known optimizer, which may change parameters of this one. Its
  /// changes do not count as steps of `inner`. before_another_step() throws what refuse_direct_step() throws.
  void before_another_step();
  void after_another_step();

  /// Number of repeated entries that were removed from the groups.
  int64_t repeated() const noexcept { return repeated_; }

  /// Throws: UsageError (MU134) if the optimizer needs full parameters and this rank holds only a part of some.
  void require_full_parameters() const;

  /// Whether steps go through a fused kernel or update().
  bool fused() const noexcept { return rule_ != UpdateRule::unfused; }
  /// "AdamW, fused", "Lion, by its update()" or "LBFGS, by its own step".
  std::string describe() const;

  torch::optim::Optimizer& inner() const noexcept { return *inner_; }

 private:
  /// As require_full_parameters(), where the optimizer's own step() is needed.
  void require_whole_parameters() const;
  bool entries_current() const;
  int64_t revision() const;
  void refresh_entries();
  void fill_entry(ParameterEntry& entry) const;
  void keep_states(const std::vector<ParameterEntry>& before);
  /// Whether fused kernels can make this step. Also finds which parameters have gradients, and drops the plan if it no
  /// longer fits.
  bool can_step_fused();
  bool can_step_fused(ParameterEntry& entry);
  bool align_gradient(ParameterEntry& entry) const;
  /// For each of the flat parameters, the parameters that this step updates.
  std::vector<std::pair<FlatParameters*, std::vector<at::Tensor>>> updated_parameters() const;
  at::Tensor step_inner(const torch::optim::Optimizer::LossClosure& closure);
  bool step_fused(const std::optional<at::Tensor>& found_inf);
  void count_step();
  void reload_states();

  torch::optim::Optimizer* inner_;
  std::vector<FlatParameters*> flat_parameters_;
  UpdateRule rule_;
  std::vector<ParameterEntry> entries_;
  int64_t revision_ = 0;              // sum of the revisions of the flat parameters when the entries were filled
  std::vector<StateSet> state_sets_;  // per group, the states in the plan
  std::optional<UpdatePlan> plan_;
  DirectStepWatch watch_;
  int64_t repeated_ = 0;
  bool stepping_ = false;
  bool another_steps_ = false;
  std::vector<c10::TensorImpl*> counted_;  // parameters whose steps step_unless() has counted
};

}  // namespace muster::optim
