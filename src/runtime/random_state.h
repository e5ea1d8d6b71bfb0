#pragma once

#include <c10/core/Device.h>

#include "muster/tree/state.h"

namespace muster::runtime {

/// The states of LibTorch's default generators in this process: that of the CPU and, if `device` is not the CPU, those
/// of all devices of its kind.
State random_state(c10::Device device);
/// Throws: CheckpointError (MU208, MU209). The generator of a device without a saved state is not changed.
void set_random_state(const State& state, c10::Device device);

}  // namespace muster::runtime
