#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include <c10/core/Device.h>

/// A simulated accelerator on LibTorch's PrivateUse1, for tests on machines without one: memory that the host cannot
/// access, streams whose work runs later than the host asks for it and in an order drawn from a seed, events, pinned
/// memory, generators, autocast. Its kernels are the CPU's, so a program that orders its streams correctly has the
/// CPU's bits under every seed.
namespace muster::sim {

struct Options {
  int64_t bytes_per_device = int64_t{1} << 34;  ///< more is an at::OutOfMemoryError; at most 16 GiB
  int devices = 4;
  std::string name = "sim";                                      ///< of the device: "sim:0", `--accelerator sim`
  std::chrono::milliseconds patience = std::chrono::minutes(1);  ///< how long the host waits while nothing can run
};

/// Registers the accelerator with LibTorch for the rest of the process. A second call with the same options does
/// nothing. Requires: before the first tensor is made on an accelerator.
/// Throws: ConfigError (MU550) if another PrivateUse1 backend is registered, the options differ from those of the first
/// call, or they are out of range.
void install(const Options& options = {});

/// The device of an index below Options::devices.
inline c10::Device device(int index) { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// The order of what runs from now on: which stream runs ahead, which crawls, which stands still until a host waits.
/// 0: every command at once, as under CUDA_LAUNCH_BLOCKING; what fails there is no missing order. Waits for the devices
/// first. Throws: as any wait of the host.
void set_seed(uint64_t seed);

/// What happened since the program began or reset_stats().
struct Stats {
  std::map<std::string, int64_t> host_waits;  ///< by cause: "item", "copy to the host", "event", "aten::nonzero", ...
  std::map<std::string, int64_t> guessed;     ///< operators whose shapes were found by running them on ones
  std::map<std::string, int64_t> restrided;   ///< operators whose CPU kernel and meta kernel disagree on strides
  int64_t commands = 0;
  int64_t reused_blocks = 0;

  int64_t all_host_waits() const;
};
Stats stats();
void reset_stats();

}  // namespace muster::sim
