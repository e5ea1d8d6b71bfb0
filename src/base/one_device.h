#pragma once  // for other rooms

#include <string>
#include <string_view>

#include "muster/base/error.h"

namespace muster {

/// Throws: ConfigError (MU561) if the accelerator names several devices; `option` says where it was given.
inline void require_one_device(std::string_view accelerator, const std::string& option) {
  if (accelerator.find(',') == std::string_view::npos) return;
  throw ConfigError("MU561", option + " is '" + std::string(accelerator) +
                                 "', but one process uses one device: name the kind (cuda), and choose the devices by "
                                 "--devices 0,1, which starts a process for each");
}

}  // namespace muster
