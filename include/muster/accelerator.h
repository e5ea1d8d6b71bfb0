#pragma once

#include "muster/runtime/presets.h"
#include "muster/runtime/runtime.h"

#include <string>

namespace muster {

/// The engine under the names that users of Accelerate know: make one, pass everything through prepare(), and call
/// backward() on it. Started by `muster run`, torchrun, mpirun or srun the program has as many ranks as they say;
/// run by itself it is an ordinary program on one device.
/// Thread safety: one thread at a time. Collective: the constructor, and what Runtime says of each call.
class Accelerator final : private Runtime {
 public:
  explicit Accelerator(const AcceleratorOptions& options = {}) : Runtime(runtime::accelerate(options)) {}

  using Runtime::autocast;
  using Runtime::backward;
  using Runtime::clip_grad_norm_;
  using Runtime::clip_grad_value_;
  using Runtime::device;
  using Runtime::epochs;
  using Runtime::gather;
  using Runtime::main_process_first;
  using Runtime::no_sync;
  using Runtime::pad_across_processes;
  using Runtime::plan;
  using Runtime::prepare;
  using Runtime::print;
  using Runtime::reduce;
  using Runtime::save_model;
  using Runtime::set_seed;
  using Runtime::unwrap_model;

  int num_processes() const { return world_size(); }
  int process_index() const { return rank(); }
  int local_process_index() const { return local_rank(); }
  bool is_main_process() const { return is_main(); }
  bool is_local_main_process() const { return is_local_main(); }
  bool is_last_process() const { return is_last(); }
  /// Waits until every rank is here. Collective.
  void wait_for_everyone() const { barrier(); }
};

}  // namespace muster
