#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/environment.h"

namespace muster::launcher {

/// What `--devices` came to.
struct DeviceChoice {
  int count = 1;             ///< ranks on this node
  std::vector<int> indices;  ///< the accelerator of each local rank; empty: rank r takes the r-th
};

/// What is wanted and what there is.
struct DeviceRequest {
  std::string accelerator;  ///< "", "auto", "cpu", or the name of an accelerator ("cuda", "gpu")
  std::string devices;      ///< "3" is a count, "3," and "0,2" are indices, "auto" and "-1" mean all there are
  int present = 0;          ///< accelerators of this node, 0 for none
};

/// On an accelerator: counts up to `present`, lists of distinct indices below it, "auto" and "-1" for all.
/// On the CPU, which is also meant when nothing is said and no accelerator is present: a positive count of processes;
/// "auto" is 1.
/// Throws: ConfigError (MU030) for anything else.
DeviceChoice choose_devices(const DeviceRequest& request);

/// Accelerators of this node that a process may see, without any driver's library: CUDA_VISIBLE_DEVICES or
/// HIP_VISIBLE_DEVICES if set, else the devices listed under `root` (as "/": NVIDIA's /proc entries, AMD's topology).
int count_accelerators(const Environment& variables, const std::string& root = "/");

/// Cores that this process may use: its affinity, and the share of CPU time that its cgroup allows, rounded up.
int count_cores();

}  // namespace muster::launcher
