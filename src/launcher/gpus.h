#pragma once  // for other rooms

#include <chrono>
#include <string>
#include <vector>

namespace muster::launcher {

/// The NVIDIA GPUs of a node and their driver. A plain value.
struct GpuReport {
  std::vector<std::string> devices = {};   ///< "0: NVIDIA H100 (UUID: GPU-...)", "0.1: MIG 1g.10gb (UUID: MIG-...)"
  std::string driver = {};                 ///< version of the driver and its source; empty: no driver
  std::vector<std::string> links = {};     ///< "NV18 (18 NVLinks): between all 8 GPUs"
  std::vector<std::string> problems = {};  ///< failed queries, with reasons
};

/// Reads the driver's own files below `root`, and asks nvidia-smi from PATH, with `timeout` for each answer. No driver
/// library is linked or opened.
GpuReport report_gpus(std::chrono::milliseconds timeout, const std::string& root = "/");

/// The lines of `nvidia-smi -L`, one for each GPU and MIG device.
std::vector<std::string> listed_devices(const std::string& output);

/// The contents of the table of `nvidia-smi topo -m`, one line for each kind of link.
std::vector<std::string> listed_links(const std::string& output);

}  // namespace muster::launcher
