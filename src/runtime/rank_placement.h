#pragma once

#include <c10/core/Device.h>

#include "cluster/report.h"
#include "comm/custom_backend.h"
#include "device/memory.h"
#include "device/processor.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// The place of this rank: its job, its device and its group (PartialState in Accelerate). Until connect(), it is the
/// only process of the job. Thread safety: one thread at a time.
class RankPlacement {
 public:
  /// Reads the environment and chooses the device. Requires: the options outlive this object.
  explicit RankPlacement(const RuntimeOptions& options);

  /// The number of ranks on this node that the program asks for; 0: the number that the launcher sets.
  int processes_wanted() const;
  /// Becomes one of the ranks that the options ask for, opens the device, and connects to the others. Returns the
  /// group, which group() gives out once the launch is finished. Collective.
  const comm::Communicator& connect();
  /// All that a rank needs for training is there.
  void finish_launch() noexcept { launched_ = true; }
  bool launched() const noexcept { return launched_; }
  /// Throws: UsageError (MU172) before launch() if several ranks were asked for.
  void require_launched() const;
  /// Called when the runtime ends. If an exception ends it, also ends the group on all ranks, so that none of them
  /// waits.
  void leave_group() noexcept;

  const ClusterEnvironment& cluster() const noexcept { return cluster_; }
  c10::Device device() const noexcept { return device_; }
  /// Throws: as require_launched().
  const comm::Communicator& group() const;
  /// Sets the group from now on. It must have the same ranks.
  void use_group(const comm::Communicator& group) { group_ = group; }
  /// What the launcher is told about this rank.
  const cluster::Report& report() const noexcept { return report_; }
  /// The lines of plan() about it.
  std::string describe() const;

 private:
  void choose_device();

  const RuntimeOptions& options_;
  ClusterEnvironment cluster_;
  c10::Device device_;
  comm::Communicator group_;
  comm::FoundBackend device_backend_;
  cluster::Report report_;
  const int exceptions_before_ = std::uncaught_exceptions();
  bool launched_ = false;
};

/// Sets LibTorch's process-wide choices: deterministic kernels, cuDNN's benchmark, and the precision of float32 matrix
/// products. Options that ask for nothing change nothing. `warns`: warn (MU572) if options conflict.
/// Why: docs/decisions/0154-choices-of-a-process.md.
void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns);

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
