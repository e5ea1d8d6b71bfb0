#pragma once  // for other rooms

#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "muster/optim/flat_parameters.h"

namespace muster::optim {

/// Steps a LibTorch optimizer with LibTorch's fused kernels, the optimizer's own options and its own state objects.
///
/// SGD, Adam, AdamW, Adagrad and RMSprop (exactly these types, not classes derived from them) run fused: one call per
/// group and per contiguous range of memory, every element in the kernel's vectorised loop. Optimizers derived from
/// ElementwiseOptimizer run their update() the same way. For other optimizers, and for a step in which a gradient is
/// sparse or a dtype differs, the optimizer's own step() runs. Both ways share one state, so they may alternate.
///
/// A tensor that is repeated in the groups (LibTorch's parameters() lists a tied weight twice) is removed from them,
/// when this object is made and when groups have changed: a step would otherwise change it twice.
///
/// Options are read from inner.param_groups() at each step, so schedulers and direct edits work. inner.state() shows
/// LibTorch's state classes; their tensors have the parameter's shape and strides and are stored in flat memory. State
/// that existed before this object was made, or that was loaded later, is kept. Parameters without gradient are skipped
/// and not counted. A step marks the parameters as modified in place, as LibTorch's own steps do.
///
/// Thread safety: one thread at a time.
class FusedOptimizer {
 public:
  /// Borrows both. `flat_parameters` are searched in order; a parameter that none of them holds is updated in place.
  /// Requires: the optimizer and the flat parameters outlive this object.
  explicit FusedOptimizer(torch::optim::Optimizer& inner, std::vector<FlatParameters*> flat_parameters = {});
  ~FusedOptimizer();
  FusedOptimizer(FusedOptimizer&&) noexcept;
  FusedOptimizer& operator=(FusedOptimizer&&) noexcept;

  /// Adds those of a model that is prepared after its optimizer.
  void add_flat_parameters(FlatParameters& flat_parameters);

  /// One update. Returns the loss of the closure, or an undefined tensor.
  /// Throws: UsageError (MU133) as refuse_direct_step(); UsageError (MU134) where the optimizer's own step() is needed
  /// for a parameter of which this rank holds only a part.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// One update, skipped if `found_inf` (float32, one element, on the device of the parameters) is 1: then nothing
  /// changes but the count of steps, which undo_step_count() lowers. Requires: takes_found_inf().
  void step_unless(const at::Tensor& found_inf);
  /// Whether the next step can be skipped by a flag: it is no update() or step() of a program's own, and no momentum
  /// of SGD begins in it.
  bool takes_found_inf();
  /// The last step_unless() was skipped.
  void undo_step_count();

  /// Clears gradients: undefined, or zero in place. Throws: as refuse_direct_step().
  void zero_grad(bool set_to_none = true);

  /// Call it at the end of each backward: it records what refuse_direct_step() compares with.
  void note_backward();

  /// Call it after parameters or inner.state() were replaced on purpose, as by loading a checkpoint: the next call
  /// accepts them.
  void note_load();

  /// Throws: UsageError (MU133) if inner.step() was called by anyone but this object since the last call here.
  /// Detected by the state's step count, by all parameters' versions, or, for SGD on a CPU, by their values.
  void refuse_direct_step();

  /// Called before and after a step of another known optimizer, which may change parameters of this one: its changes do
  /// not count as steps of `inner`. before_another_step() throws as refuse_direct_step().
  void before_another_step();
  void after_another_step();

  /// Number of repeated entries that were removed from the groups.
  int64_t repeated() const noexcept;

  /// Throws: UsageError (MU134) if the optimizer needs full parameters and this rank holds only a part of some.
  void require_full_parameters() const;

  /// Whether steps go through a fused kernel or update().
  bool fused() const noexcept;
  /// "AdamW, fused", "Lion, by its update()" or "LBFGS, by its own step".
  std::string describe() const;

  torch::optim::Optimizer& inner() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::optim
