#pragma once

#include "muster/tree/state.h"

#include <c10/core/Device.h>

namespace muster::runtime {

/// Where LibTorch's default generators of this process stand: the CPU's, and the device's if it is another.
State random_state(c10::Device device);
/// Throws: CheckpointError (MU208, MU209). A generator of a device that has none saved goes on as it is.
void set_random_state(const State& state, c10::Device device);

}  // namespace muster::runtime
