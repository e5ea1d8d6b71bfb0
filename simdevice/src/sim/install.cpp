#include <optional>

#include <c10/core/DeviceType.h>

#include "base/mutex.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "sim/machine.h"
#include "sim/memory.h"
#include "sim/registration.h"

namespace muster::sim {
namespace {

bool equal(const Options& a, const Options& b) {
  return a.bytes_per_device == b.bytes_per_device && a.devices == b.devices && a.name == b.name &&
         a.patience == b.patience;
}

void check(const Options& options) {
  if (options.devices < 1 || options.devices > 16)
    throw ConfigError("MU550", formatted("the simulated accelerator has 1 to 16 devices, not {}", options.devices));
  if (options.bytes_per_device < 1 || options.bytes_per_device > static_cast<int64_t>(kBytesOfAddresses))
    throw ConfigError("MU550", formatted("a device of the simulated accelerator has up to {} bytes, not {}",
                                         kBytesOfAddresses, options.bytes_per_device));
  if (c10::is_privateuse1_backend_registered())
    throw ConfigError("MU550", "the simulated accelerator cannot be installed: this program has the accelerator \"" +
                                   c10::get_privateuse1_backend() + "\" already, and LibTorch has room for one");
}

}  // namespace

void install(const Options& options) {
  static base::Mutex mutex;
  static auto& installed MUSTER_GUARDED_BY(mutex) = *new std::optional<Options>;
  const base::Lock lock(mutex);
  if (installed && equal(*installed, options)) return;
  if (installed) throw ConfigError("MU550", "the simulated accelerator was installed before, with other options");
  check(options);
  Machine::get().start(options);
  reserve_addresses(options.devices);
  reserve_pinned_addresses();
  c10::register_privateuse1_backend(options.name);
  register_guard();
  register_hooks();
  register_operators();
  register_autocast();
  installed = options;
  set_seed(1);
}

}  // namespace muster::sim
