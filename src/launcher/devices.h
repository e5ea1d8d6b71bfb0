#pragma once  // for other rooms

#include <chrono>

#include "muster/base/environment.h"

/// The accelerators of this node, found without a driver's library: which ranks get which, and a report of them.
namespace muster::launcher {

/// The result of `--devices`.
struct DeviceChoice {
  int count = 1;             ///< ranks on this node
  std::vector<int> indices;  ///< accelerator of each local rank; empty: local rank r uses accelerator r
};

/// The request for devices, and the number of accelerators that exist.
struct DeviceRequest {
  std::string accelerator;          ///< "", "auto", "cpu", or the name of an accelerator ("cuda", "gpu")
  std::string devices;              ///< "3" is a count, "3," and "0,2" are indices, "auto" and "-1" mean all
  int present = 0;                  ///< number of accelerators of this node
  std::string place = "--devices";  ///< source of `devices`, for messages
};

/// On an accelerator: counts up to `present`, lists of distinct indices below it, "auto" and "-1" for all. On the CPU:
/// a positive number of processes; "auto" is 1. The CPU is also chosen if `accelerator` is empty or "auto" and no
/// accelerator is present.
/// Throws: ConfigError (MU030) for anything else, (MU561) for an accelerator that names several devices.
DeviceChoice choose_devices(const DeviceRequest& request);

/// The devices that CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES shows to a process, in this order: indices, UUIDs of
/// GPUs and UUIDs of MIG devices, as in {"0", "GPU-5d5ba0d6", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"}. nullopt if
/// neither is set.
/// Throws: ConfigError (MU573) for any other entry.
std::optional<std::vector<std::string>> visible_devices(const Environment& variables);

/// The single device that each local rank may see, since a process can use only one MIG device; empty if every rank may
/// see all. Throws: as visible_devices(). Why: docs/decisions/0154-choices-of-a-process.md.
std::vector<std::string> devices_of_ranks(const DeviceRequest& request, const DeviceChoice& choice,
                                          const Environment& variables);

/// The number of accelerators of this node that a process may see, found without a driver's library: the entries of
/// CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES if set and a driver exists, otherwise the devices listed under `root`
/// (NVIDIA's /proc entries or device files, AMD's topology). "" is the root folder, or the one that MUSTER_TEST_ROOT
/// names. Throws: as visible_devices().
int count_accelerators(const Environment& variables, std::string root = "");

/// The number of cores that this process may use: the smaller of its affinity and the CPU time of its cgroup, rounded
/// up.
int count_cores();

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
