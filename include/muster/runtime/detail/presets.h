#pragma once

#include "muster/runtime/options.h"

namespace muster::runtime {

/// RuntimeOptions with the defaults that Accelerate documents.
RuntimeOptions accelerate(const AcceleratorOptions& options);
/// RuntimeOptions with the defaults that Lightning Fabric documents.
RuntimeOptions fabric(const FabricOptions& options);

}  // namespace muster::runtime
