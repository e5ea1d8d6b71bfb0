#pragma once

#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "muster/data/options.h"

namespace muster::comm {
class Communicator;
}

namespace muster::runtime {

/// Sets the named default generators of LibTorch and the generators in the list to the states that they have on rank 0.
/// Collective. Throws, on all ranks: UsageError (MU328) if ranks name different generators; (MU329) for an undefined
/// generator.
void synchronize_rng_states(const comm::Communicator& group, c10::Device device, const SyncedGenerators& kinds,
                            std::vector<at::Generator> generators);

}  // namespace muster::runtime
