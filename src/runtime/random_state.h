#pragma once

#include <c10/core/Device.h>

#include "muster/tree/state.h"

namespace muster::runtime {

/// The states of LibTorch's default generators in this process: the CPU's, and if the device is another, its own and
/// those of the other devices of its kind.
State random_state(c10::Device device);
/// Throws: CheckpointError (MU208, MU209). A generator of a device for which no state was saved is not changed.
void set_random_state(const State& state, c10::Device device);

}  // namespace muster::runtime
