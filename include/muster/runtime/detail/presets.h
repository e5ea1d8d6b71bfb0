#pragma once

#include "muster/runtime/options.h"

namespace muster::runtime {

/// The runtime's options for what Accelerate's documentation says of its behaviour.
RuntimeOptions accelerate(const AcceleratorOptions& options);
/// The runtime's options for what Fabric's documentation says of its behaviour.
RuntimeOptions fabric(const FabricOptions& options);

}  // namespace muster::runtime
