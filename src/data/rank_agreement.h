#pragma once

#include "muster/data/options.h"
#include "muster/dist/communicator.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace muster::data {

/// Rank 0's seed, once all ranks have said the same. Throws: ConfigError (MU115), on every rank, if they have not. Collective.
uint64_t agree(const dist::Communicator& group, const std::string& said, uint64_t seed);

/// The generators get rank 0's state. Collective: where one is chosen.
void synchronize_generators(const dist::Communicator& group, c10::Device device, const SyncedGenerators& which);

}  // namespace muster::data
