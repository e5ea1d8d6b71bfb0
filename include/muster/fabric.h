#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "muster/runtime/detail/loop_functions.h"
#include "muster/runtime/detail/presets.h"
#include "muster/runtime/detail/saved_item.h"
#include "muster/runtime/options.h"

namespace muster {

/// Muster's runtime under the names of Lightning Fabric: call its launch(), setup(), setup_dataloaders(), backward().
/// Thread safety: one thread at a time. Collective: the constructor, if a launcher started the program (it then joins
/// the group); launch(), and each call that Runtime marks as collective.
class Fabric final : private runtime::LoopFunctions {
 public:
  explicit Fabric(const FabricOptions& options = {}) : LoopFunctions(runtime::fabric(options)) {}

  using LoopFunctions::evaluation;
  using LoopFunctions::progress;
  using LoopFunctions::synchronize_rng_states;
  using Runtime::accumulate;
  using Runtime::all_gather;
  using Runtime::autocast;
  using Runtime::backward;
  using Runtime::barrier;
  using Runtime::broadcast;
  using Runtime::broadcast_object;
  using Runtime::call;
  using Runtime::catch_signals;
  using Runtime::check_trigger;
  using Runtime::clip_grad_norm_;
  using Runtime::clip_grad_value_;
  using Runtime::collector;
  using Runtime::convert_sync_batchnorm;
  using Runtime::device;
  using Runtime::epochs;
  using Runtime::find_executable_batch_size;
  using Runtime::free_memory;
  using Runtime::gather;
  using Runtime::gather_for_metrics;
  using Runtime::gather_object;
  using Runtime::gradient_accumulation_steps;
  using Runtime::group;
  using Runtime::is_last;
  using Runtime::is_local_main;
  using Runtime::join_uneven_inputs;
  using Runtime::launch;
  using Runtime::load;
  using Runtime::load_model;
  using Runtime::load_raw;
  using Runtime::load_state;
  using Runtime::local_rank;
  using Runtime::local_sgd;
  using Runtime::logger;
  using Runtime::no_backward_sync;
  using Runtime::no_sync;
  using Runtime::node_rank;
  using Runtime::on_last_process;
  using Runtime::on_local_main_process;
  using Runtime::on_local_process;
  using Runtime::on_main_process;
  using Runtime::on_process;
  using Runtime::optimizer_step_was_skipped;
  using Runtime::out;
  using Runtime::pad_across_processes;
  using Runtime::plan;
  using Runtime::print;
  using Runtime::profile;
  using Runtime::register_for_checkpointing;
  using Runtime::register_load_state_pre_hook;
  using Runtime::register_save_state_pre_hook;
  using Runtime::save;
  using Runtime::save_model;
  using Runtime::save_state;
  using Runtime::set_gradient_accumulation_steps;
  using Runtime::set_trigger;
  using Runtime::signal_received;
  using Runtime::skip_first_batches;
  using Runtime::split_between_processes;
  using Runtime::state;
  using Runtime::summon_full_params;
  using Runtime::sync_gradients;
  using Runtime::unscale_gradients;
  using Runtime::unwrap_model;
  using Runtime::wait_for_save;
  using Runtime::world_size;

  /// Returns the module's handle, or a tuple of the handles of all arguments: see Runtime::prepare(). Collective.
  template <runtime::ModuleArgument M, class... T>
  auto setup(M&& module, T&&... objects) {
    return prepare(std::forward<M>(module), std::forward<T>(objects)...);
  }
  template <runtime::ModuleArgument M, class... T>
  auto setup(const PrepareOptions& options, M&& module, T&&... objects) {
    return prepare(options, std::forward<M>(module), std::forward<T>(objects)...);
  }
  template <runtime::ModuleArgument M>
  auto setup_module(M&& module) {
    return prepare(std::forward<M>(module));
  }
  template <runtime::ModuleArgument M>
  auto setup_module(M&& module, const PrepareOptions& options) {
    return prepare(options, std::forward<M>(module));
  }
  /// Takes optimizers of modules that were set up before, and their schedulers.
  template <class... T>
    requires(!runtime::ModuleLike<T> && ...)
  auto setup_optimizers(T&&... objects) {
    return prepare(std::forward<T>(objects)...);
  }
  template <runtime::Loader... L>
  auto setup_dataloaders(L&&... loaders) {
    return prepare(std::forward<L>(loaders)...);
  }
  template <runtime::Loader... L>
  auto setup_dataloaders(const PrepareOptions& options, L&&... loaders) {
    return prepare(options, std::forward<L>(loaders)...);
  }

  /// Clips the gradients of the optimizer's parameters by norm or by value. Collective: as Runtime::clip_grad_norm_().
  /// Throws: ConfigError (MU179) unless exactly one of max_norm and clip_val is given; UsageError (MU175) for a norm
  /// that is not finite; on a device the next step throws it, and the step after this call changes nothing.
  template <class M>
  GradNorm clip_gradients(const Model<M>&, const Optimizer& optimizer, const ClipGradientsOptions& options) {
    return clip_gradients_of(optimizer, options);
  }
  /// Returns the value reduced over ranks, as a new value. Collective.
  template <class T>
  T all_reduce(const T& value, std::string_view op = "mean") const {
    return reduce(value, op);
  }
  /// Runs `f` on rank 0 first, then on the others; local_rank_zero_first(): on the first rank of each node. Collective.
  template <class F>
  auto rank_zero_first(F&& f) const {
    return main_process_first(std::forward<F>(f));
  }
  template <class F>
  auto local_rank_zero_first(F&& f) const {
    return local_main_process_first(std::forward<F>(f));
  }
  void seed_everything(uint64_t seed, bool per_rank = false) { set_seed(seed, per_rank); }
  int global_rank() const { return rank(); }
  bool is_global_zero() const { return is_main(); }
};

}  // namespace muster
