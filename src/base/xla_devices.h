#pragma once  // for other rooms

#include <string>
#include <string_view>

namespace muster {

/// Whether `name` is a device that Python reaches through PyTorch/XLA or Neuron: "tpu", "xla", "neuron".
inline bool is_xla_device(std::string_view name) { return name == "tpu" || name == "xla" || name == "neuron"; }

/// Why such a device cannot be used, for a message of error MU497 that begins with what asked for it.
inline std::string no_xla_device(std::string_view name) {
  return "LibTorch has no backend for it: PyTorch/XLA and Neuron are Python packages. Take cpu or gpu, or load a "
         "library that registers a PrivateUse1 backend by the name " +
         std::string(name);
}

}  // namespace muster
