#include "resolved_options.h"

#include "device/device.h"
#include "launcher/devices.h"

namespace muster::runtime {

int processes_wanted(const RuntimeOptions& options) {
  if (!options.devices || options.devices->text() == "auto") return 0;
  return launcher::choose_devices({options.accelerator, options.devices->text(), device::count()}).count;
}

}  // namespace muster::runtime
