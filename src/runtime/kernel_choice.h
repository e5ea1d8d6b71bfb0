#pragma once

#include <c10/core/Device.h>

#include "muster/runtime/options.h"

namespace muster::runtime {

/// Sets LibTorch's process-wide choices: deterministic kernels, cuDNN's benchmark, and the precision of float32 matrix
/// products. Options that ask for nothing change nothing. `warns`: warn (MU572) if options conflict.
/// Why: docs/decisions/0154-choices-of-a-process.md.
void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns);

}  // namespace muster::runtime
