#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

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
/// nothing. Requires: before the first tensor is made on an accelerator, and before the first backward, at which
/// autograd starts its threads, one per device.
/// Throws: ConfigError (MU550) if another PrivateUse1 backend is registered, the options differ from those of the first
/// call, or they are out of range.
void install(const Options& options = {});

/// The device of an index below Options::devices.
inline c10::Device device(int index) { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// The order of what runs from now on: which stream runs ahead, which crawls, which stands still until a host waits.
/// 0: every command at once, as under CUDA_LAUNCH_BLOCKING; what fails there is no missing order. Waits for the devices
/// first. Throws: as any wait of the host.
void set_seed(uint64_t seed);

/// Two accesses of the same bytes, of which one writes, and neither of which is known to come before the other: a wait
/// is missing. What a stream or the host has waited for is followed call by call, so a program has the same races under
/// every seed. The memory of a tensor is written where it is allocated and where it is released, so the other streams
/// that use it must be ordered after the one and before the other, or recorded (Tensor::record_stream). Threads of the
/// host count as one, so what one of them has waited for counts for all. Tensors whose elements lie in more than 1024
/// separate places count as all bytes between them.
struct Race {
  struct Access {
    std::string what;    ///< "aten::mm", "copy to the device", "ALLREDUCE 3", "the release of the memory", "the host"
    std::string site;    ///< "train at main.cpp:17, called by main at main.cpp:40", as far as symbols are known
    std::string stream;  ///< "sim:0 stream 3"
    bool writes = false;
  };
  Access first, second;  ///< as the host called them
  std::string text() const;
};

enum class OnRace {
  raise,    ///< the host's next wait for a device throws UsageError (MU556)
  collect,  ///< take_races() returns them
  ignore,   ///< none is looked for, which costs less
};
void set_on_race(OnRace on_race);
/// Those found since the last call or error.
std::vector<Race> take_races();

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
