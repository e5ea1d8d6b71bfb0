#pragma once

#include "muster/runtime.h"

namespace muster {

/// Muster's runtime under the names of Accelerate: create one, pass all training objects through prepare(), and call
/// backward(). A program that `muster run`, torchrun, mpirun or srun starts has as many ranks as the launcher gives it;
/// one started directly is an ordinary program on one device.
/// Thread safety: one thread at a time. Collective: the constructor, and each call that Runtime marks as collective.
class Accelerator final : public Runtime {
 public:
  /// Throws: as Runtime.
  explicit Accelerator(const AcceleratorOptions& options = {}) : Runtime(runtime::accelerate(options)) {}

  /// How many ranks the job has.
  int num_processes() const { return world_size(); }
  /// This rank's number in the job, from 0.
  int process_index() const { return rank(); }
  /// This rank's number on its node, from 0.
  int local_process_index() const { return local_rank(); }
  /// Whether this is rank 0.
  bool is_main_process() const { return is_main(); }
  /// Whether this is the first rank of its node.
  bool is_local_main_process() const { return is_local_main(); }
  /// Whether this rank has the highest number of the job.
  bool is_last_process() const { return is_last(); }
  /// Waits until every rank has called it. Collective.
  void wait_for_everyone() const { barrier(); }
};

}  // namespace muster
