#pragma once

#include "muster/optim/flat_source.h"

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

namespace muster::optim {

/// Steps a LibTorch optimizer by LibTorch's fused kernels, with the optimizer's own options and its own state objects.
///
/// SGD, Adam, AdamW, Adagrad and RMSprop (these types themselves, not classes derived from them) run fused: one call per group
/// and per stretch of memory, every element by the kernel's vector body. What derives from ElementwiseOptimizer runs its
/// update() the same way. Anything else, and a step in which a gradient is
/// sparse or a dtype differs, goes through the optimizer's own step(). Both ways share one state, so they may alternate.
///
/// A tensor that is in the groups again (LibTorch's parameters() lists a tied weight twice) is removed from them, when this object
/// is made and when groups have changed: a step would change it twice.
///
/// Options are read from inner.param_groups() at each step, so schedulers and direct edits work. inner.state() shows
/// LibTorch's state classes; their tensors have the parameter's shape and strides and lie in flat memory. State that was
/// there at hand-over, or was loaded later, is taken over. Parameters without gradient are skipped and not counted.
/// A step marks the parameters as modified in place, as LibTorch's own steps do.
///
/// Thread safety: one thread at a time.
class FusedOptimizer {
 public:
  /// Borrows both. `sources` are asked in order; a parameter held by none is updated where it lies.
  /// Requires: the optimizer and the sources outlive this object.
  explicit FusedOptimizer(torch::optim::Optimizer& inner, std::vector<FlatSource*> sources = {});
  ~FusedOptimizer();
  FusedOptimizer(FusedOptimizer&&) noexcept;
  FusedOptimizer& operator=(FusedOptimizer&&) noexcept;

  /// A model prepared after its optimizer.
  void add_source(FlatSource& source);

  /// One update; the loss of the closure, or an undefined tensor.
  /// Throws: UsageError (MU133) as refuse_own_step(); UsageError (MU134) where the optimizer's own step() is needed for a
  /// parameter of which this rank holds only a part.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure = nullptr);

  /// Forgets gradients: undefined, or zero in place. Throws: as refuse_own_step().
  void zero_grad(bool set_to_none = true);

  /// To be called at the end of each backward: what refuse_own_step() compares with.
  void note_backward();

  /// Parameters or inner.state() were replaced on purpose, as by loading a checkpoint: the next call accepts them.
  void note_load();

  /// Throws: UsageError (MU133) if inner.step() was called by anyone but this object since the last call here.
  /// Seen by the state's step count, by all parameters' versions, or, for SGD on a CPU, by their values.
  void refuse_own_step();

  /// Another optimizer that is no stranger is about to step, perhaps parameters of this one, and has: its changes are no steps of
  /// inner's. The former throws as refuse_own_step().
  void before_another_step();
  void after_another_step();

  /// Entries that were removed from the groups, since they were there before.
  int64_t repeated() const noexcept;

  /// Throws: UsageError (MU134) if the optimizer needs whole parameters and this rank holds only a part of some.
  void refuse_parts() const;

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
