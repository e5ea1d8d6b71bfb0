#pragma once  // for other rooms

#include <chrono>
#include <string>
#include <vector>

namespace muster::launcher {

/// What a node's GPUs of NVIDIA's and their driver are. A plain value.
struct GpuReport {
  std::vector<std::string> devices = {};   ///< "0: NVIDIA H100 (UUID: GPU-...)", "0.1: MIG 1g.10gb (UUID: MIG-...)"
  std::string driver = {};                 ///< its version, and who says so; empty: there is none
  std::vector<std::string> links = {};     ///< "NV18 (18 NVLinks): between all 8 GPUs"
  std::vector<std::string> problems = {};  ///< what could not be asked, and why
};

/// Asks the driver's own files below `root`, and the program nvidia-smi of PATH, which gets so long for each answer.
/// No library of the driver is linked or opened.
GpuReport report_gpus(std::chrono::milliseconds timeout, const std::string& root = "/");

/// What `nvidia-smi -L` lists, a line for each GPU and MIG device.
std::vector<std::string> listed_devices(const std::string& output);

/// What the table of `nvidia-smi topo -m` says, a line for each kind of link.
std::vector<std::string> listed_links(const std::string& output);

}  // namespace muster::launcher
