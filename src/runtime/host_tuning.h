#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "device/memory.h"
#include "device/processor.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// Sets LibTorch's process-wide choices: deterministic kernels, cuDNN's benchmark, and the precision of float32 matrix
/// products. Options that ask for nothing change nothing. `warns`: warn (MU572) if options conflict.
/// Why: docs/decisions/0154-choices-of-a-process.md.
void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns);

/// Divides the cores of a node among its ranks, unless OMP_NUM_THREADS says how many threads each gets.
void share_cores(const ClusterEnvironment& cluster);

/// Binds the threads of this rank to its share of the cores near its device, and returns the line for plan().
/// Collective: all ranks of the group, with or without near cores.
std::string keep_near_device(const comm::Communicator& group, const device::NearCores& near,
                             const std::string& root = "/");

// Why: docs/decisions/0154-choices-of-a-process.md and, for freed memory, 0042-freed-memory-is-kept.md.

/// A rank's use of its host: the cores it runs on, the fate of freed memory, and how a precision that the processor
/// lacks is computed. Thread safety: one thread at a time.
class HostTuning {
 public:
  /// Throws: ConfigError for a precision that the device does not support, or options that contradict it.
  void resolve_precision(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device);
  /// Collective.
  void choose_cores(const RuntimeOptions& options, const comm::Communicator& group, c10::Device device);
  void choose_memory(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device);
  /// Whether memory that tensors free is kept for later allocations.
  bool keeps_memory() const noexcept { return kept_memory_.kept; }
  /// Lines of plan() about the host.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  device::KeptMemory kept_memory_;
  std::vector<std::string> notes_;
};

}  // namespace muster::runtime
