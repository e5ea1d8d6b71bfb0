#pragma once  // for other rooms

#include "muster/base/error.h"

namespace muster {

/// Throws: ConfigError (MU561) if the accelerator names several devices; `option` says where it was given.
inline void require_one_device(std::string_view accelerator, const std::string& option) {
  if (accelerator.find(',') == std::string_view::npos) return;
  throw ConfigError("MU561", option + " is '" + std::string(accelerator) +
                                 "', but one process uses one device: name the kind (cuda), and choose the devices by "
                                 "--devices 0,1, which starts a process for each");
}

/// Whether `name` is a device that Python reaches through PyTorch/XLA or Neuron: "tpu", "xla", "neuron".
inline bool is_xla_device(std::string_view name) { return name == "tpu" || name == "xla" || name == "neuron"; }

/// Why such a device cannot be used, for a message of error MU497 that begins with what asked for it.
inline std::string no_xla_device(std::string_view name) {
  return "LibTorch has no backend for it: PyTorch/XLA and Neuron are Python packages. Take cpu or gpu, or load a "
         "library that registers a PrivateUse1 backend by the name " +
         std::string(name);
}

}  // namespace muster
