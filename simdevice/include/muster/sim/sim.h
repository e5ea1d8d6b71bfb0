#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

/// A simulated accelerator on LibTorch's PrivateUse1, for tests on machines without one: memory that the host cannot
/// access, streams whose work is delayed and runs in an order drawn from a seed, events, pinned memory, generators,
/// autocast. Its kernels are the CPU's, so a program that orders its streams correctly gets the bits of a CPU run under
/// every seed. See docs/decisions/0133-a-simulated-accelerator.md.
namespace muster::sim {

struct Options {
  int64_t bytes_per_device = int64_t{1} << 34;  ///< more throws at::OutOfMemoryError; at most 16 GiB
  int devices = 4;
  std::string name = "sim";                                      ///< name of the device: "sim:0", `--accelerator sim`
  std::chrono::milliseconds patience = std::chrono::minutes(1);  ///< how long the host waits while no command can run
};

/// Registers the accelerator with LibTorch for the rest of the process. A second call with the same options does
/// nothing. Requires: no tensor was made on an accelerator and no backward has run, since the first backward makes
/// autograd start one thread per device.
/// Throws: ConfigError (MU550) if another PrivateUse1 backend is registered, the options differ from those of the first
/// call, or they are out of range.
void install(const Options& options = {});

/// The device of an index below Options::devices.
inline c10::Device device(int index) { return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)}; }

/// Sets the seed of the order in which commands run from now on: which streams run ahead, which are slow, and which
/// stop until a host waits. 0: every command runs immediately, as under CUDA_LAUNCH_BLOCKING, so a failure is not
/// caused by missing synchronisation. Waits for the devices first. Throws: as any wait of the host.
void set_seed(uint64_t seed);

/// A missing wait: two accesses of the same bytes, at least one of them a write, of which neither is ordered before the
/// other. Waits of streams and of the host are tracked call by call, so the races of a program do not depend on the
/// seed. Allocation and release count as writes of a tensor's memory, so other streams that use it must be ordered
/// after the allocation and before the release, or recorded (Tensor::record_stream). All host threads count as one: a
/// wait of one thread counts for all. A tensor whose elements lie in more than 1024 separate runs counts as all bytes
/// between them.
struct Race {
  struct Access {
    std::string what;    ///< "aten::mm", "copy to the device", "ALLREDUCE 3", "the release of the memory", "the host"
    std::string site;    ///< "train at main.cpp:17, called by main at main.cpp:40", as far as symbols are known
    std::string stream;  ///< "sim:0 stream 3"
    bool writes = false;
  };
  Access first, second;  ///< in the order of the host's calls
  std::string text() const;
};

enum class OnRace {
  raise,    ///< the host's next wait for a device throws UsageError (MU556)
  collect,  ///< take_races() returns them
  ignore,   ///< races are not detected, which costs less
};
void set_on_race(OnRace on_race);
/// Returns the races found since the last call or error.
std::vector<Race> take_races();

/// Counts since the program began or since reset_stats().
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
