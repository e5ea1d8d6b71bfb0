#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "muster/runtime.h"

namespace muster {

/// Muster's runtime under the names of Lightning Fabric: call its launch(), setup(), setup_dataloaders(), backward().
/// Thread safety: one thread at a time. Collective: the constructor, if a launcher started the program (it then joins
/// the group); launch(), and each call that Runtime marks as collective.
class Fabric final : public Runtime {
 public:
  /// Throws: as Runtime.
  explicit Fabric(const FabricOptions& options = {}) : Runtime(runtime::fabric(options)) {}

  /// Returns the module's handle, or a tuple of the handles of all arguments: see Runtime::prepare(). Collective.
  template <runtime::ModuleArgument M, class... T>
  auto setup(M&& module, T&&... objects) {
    return prepare(std::forward<M>(module), std::forward<T>(objects)...);
  }
  /// Sets up objects with the given options: setup({.move_to_device = false}, net, optimizer). Collective.
  template <runtime::ModuleArgument M, class... T>
  auto setup(const PrepareOptions& options, M&& module, T&&... objects) {
    return prepare(options, std::forward<M>(module), std::forward<T>(objects)...);
  }
  /// Returns the module's handle, as prepare(). Collective.
  template <runtime::ModuleArgument M>
  auto setup_module(M&& module) {
    return prepare(std::forward<M>(module));
  }
  /// Returns the module's handle, prepared with the given options. Collective.
  template <runtime::ModuleArgument M>
  auto setup_module(M&& module, const PrepareOptions& options) {
    return prepare(options, std::forward<M>(module));
  }
  /// Takes optimizers of modules that were set up before, and their schedulers; returns their handles. Collective.
  template <class... T>
    requires(!runtime::ModuleLike<T> && ...)
  auto setup_optimizers(T&&... objects) {
    return prepare(std::forward<T>(objects)...);
  }
  /// Returns the loaders that this rank iterates: a tuple, or a single loader bare. Collective.
  template <runtime::Loader... L>
  auto setup_dataloaders(L&&... loaders) {
    return prepare(std::forward<L>(loaders)...);
  }
  /// Returns the loaders that this rank iterates, prepared with the given options. Collective.
  template <runtime::Loader... L>
  auto setup_dataloaders(const PrepareOptions& options, L&&... loaders) {
    return prepare(options, std::forward<L>(loaders)...);
  }

  /// Clips the gradients of the optimizer's parameters by norm or by value. Collective: as Runtime::clip_grad_norm_().
  /// Throws: ConfigError (MU179) unless exactly one of max_norm and clip_val is given; UsageError (MU175) for a norm
  /// that is not finite. For gradients on a device, the step after this call changes nothing, and the next step throws.
  template <class M>
  GradNorm clip_gradients(const Model<M>&, const Optimizer& optimizer, const ClipGradientsOptions& options) {
    return clip_gradients_of(optimizer, options);
  }
  /// Returns the value reduced over ranks, as a new value. Collective. Throws: as Runtime::reduce().
  template <class T>
  T all_reduce(const T& value, std::string_view op = "mean") const {
    return reduce(value, op);
  }
  /// Runs `f` on rank 0 first, then on the others; if it throws on rank 0, all ranks throw. Collective.
  template <class F>
  auto rank_zero_first(F&& f) const {
    return main_process_first(std::forward<F>(f));
  }
  /// Runs `f` on the first rank of each node first, then on the others; if it throws there, all ranks throw.
  /// Collective.
  template <class F>
  auto local_rank_zero_first(F&& f) const {
    return local_main_process_first(std::forward<F>(f));
  }
  /// Seeds all generators, with one seed on every rank or with the rank added to it, as set_seed().
  void seed_everything(uint64_t seed, bool per_rank = false) { set_seed(seed, per_rank); }
  /// This rank's number in the job, from 0.
  int global_rank() const { return rank(); }
  /// Whether this is rank 0.
  bool is_global_zero() const { return is_main(); }
};

}  // namespace muster
