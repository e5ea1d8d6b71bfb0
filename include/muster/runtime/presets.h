#pragma once

#include "muster/runtime/options.h"

namespace muster::runtime {

/// The runtime's options as Accelerate documents its own behaviour.
RuntimeOptions accelerate(const AcceleratorOptions& options);
/// The runtime's options as Fabric documents its own behaviour.
RuntimeOptions fabric(const FabricOptions& options);

}  // namespace muster::runtime
