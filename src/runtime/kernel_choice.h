#pragma once

#include <c10/core/Device.h>

#include "muster/runtime/options.h"

namespace muster::runtime {

/// Sets what LibTorch has for the whole process: whether kernels are deterministic, whether cuDNN tries its kernels,
/// and how float32 matrices are multiplied. Options that ask for nothing change nothing. `warns`: warns (MU572) if the
/// options get in each other's way.
void choose_kernels(const RuntimeOptions& options, c10::Device device, bool warns);

}  // namespace muster::runtime
