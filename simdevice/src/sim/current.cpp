#include <utility>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "sim/machine.h"

namespace muster::sim {
namespace {

constexpr int kMostDevices = 16;  // largest number of devices that install() accepts

thread_local int current = 0;
thread_local c10::StreamId streams[kMostDevices] = {};

}  // namespace

int current_device() { return current; }

int exchange_device(int device) {
  const auto& options = Machine::get().options();
  if (device < 0 || device >= options.devices)
    throw UsageError("MU553",
                     formatted("there is no device {}:{}; the simulated accelerator was installed with {} devices",
                               options.name, device, options.devices));
  return std::exchange(current, device);
}

c10::Stream current_stream(int device) { return stream(device, streams[device]); }

c10::Stream exchange_stream(c10::Stream to) {
  const int device = static_cast<unsigned char>(to.device_index());
  return stream(device, std::exchange(streams[device], to.id()));
}

}  // namespace muster::sim
