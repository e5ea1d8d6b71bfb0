#pragma once

#include "muster/runtime/detail/loop_functions.h"

namespace muster {

/// Muster's runtime under the names of Accelerate: make one, pass everything through its prepare(), and call its
/// backward(). A program that `muster run`, torchrun, mpirun or srun starts has as many ranks as the launcher gives it;
/// one started directly is an ordinary program on one device.
/// Thread safety: one thread at a time. Collective: the constructor, and each call that Runtime marks as collective.
class Accelerator final : private runtime::LoopFunctions {
 public:
  explicit Accelerator(const AcceleratorOptions& options = {}) : LoopFunctions(options) {}

  using LoopFunctions::evaluation;
  using LoopFunctions::progress;
  using LoopFunctions::synchronize_rng_states;
  using Runtime::accumulate;
  using Runtime::all_gather;
  using Runtime::autocast;
  using Runtime::backward;
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
  using Runtime::join_uneven_inputs;
  using Runtime::launch;
  using Runtime::load;
  using Runtime::load_model;
  using Runtime::load_raw;
  using Runtime::load_state;
  using Runtime::local_main_process_first;
  using Runtime::local_sgd;
  using Runtime::logger;
  using Runtime::main_process_first;
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
  using Runtime::prepare;
  using Runtime::print;
  using Runtime::profile;
  using Runtime::reduce;
  using Runtime::register_for_checkpointing;
  using Runtime::register_load_state_pre_hook;
  using Runtime::register_save_state_pre_hook;
  using Runtime::save;
  using Runtime::save_model;
  using Runtime::save_state;
  using Runtime::set_gradient_accumulation_steps;
  using Runtime::set_seed;
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

  int num_processes() const { return world_size(); }
  int process_index() const { return rank(); }
  int local_process_index() const { return local_rank(); }
  bool is_main_process() const { return is_main(); }
  bool is_local_main_process() const { return is_local_main(); }
  bool is_last_process() const { return is_last(); }
  /// Waits until every rank has called it. Collective.
  void wait_for_everyone() const { barrier(); }
};

}  // namespace muster
