#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

#include "muster/comm/communicator.h"
#include "muster/data/options.h"

namespace muster::data {

/// Returns rank 0's seed if `said` is the same on all ranks. Throws: ConfigError (MU115), on every rank, if it is not.
/// Collective.
uint64_t agree(const comm::Communicator& group, const std::string& said, uint64_t seed);

/// Sets the chosen generators to rank 0's state. Collective: if one is chosen.
void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which);

}  // namespace muster::data
