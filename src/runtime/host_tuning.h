#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "device/affinity.h"
#include "device/host_memory.h"
#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"

namespace muster::runtime {

/// Divides the cores of a node among its ranks, unless OMP_NUM_THREADS says how many threads each gets.
void share_cores(const ClusterEnvironment& cluster);

/// Lets the threads of this rank run on its share of the cores near its device, and returns what plan() says of it.
/// Collective: all ranks of the group, whether or not they have near cores.
std::string keep_near_device(const comm::Communicator& group, const device::NearCores& near,
                             const std::string& root = "/");

/// How a rank uses its host: on which cores it runs, what is done with freed memory, and how the precision is
/// computed where the processor lacks it. Thread safety: one thread at a time.
class HostTuning {
 public:
  /// Throws: ConfigError for a precision that the device does not support, or options that contradict it.
  void resolve_precision(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device);
  /// Collective.
  void choose_cores(const RuntimeOptions& options, const comm::Communicator& group, c10::Device device);
  void choose_memory(const RuntimeOptions& options, const ClusterEnvironment& cluster, c10::Device device);
  /// Whether memory that tensors free is kept for the next step.
  bool keeps_memory() const noexcept { return kept_memory_.kept; }
  /// Lines of plan() about these.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

 private:
  device::KeptMemory kept_memory_;
  std::vector<std::string> notes_;
};

}  // namespace muster::runtime
