#pragma once  // for other rooms

#include <cstdint>
#include <string>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "muster/comm/communicator.h"
#include "muster/data/options.h"

namespace muster::data {

/// Sets the generator to rank 0's state. Collective: with generators of one type on all ranks.
void broadcast_state(const comm::Communicator& group, at::Generator generator);

/// Returns rank 0's seed. Throws: ConfigError (MU115) on every rank if `order`, a description of the loader, differs
/// between ranks. Collective.
uint64_t shared_seed(const comm::Communicator& group, const std::string& order, uint64_t seed);

/// Sets the chosen generators to rank 0's state. Collective: if one is chosen.
void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which);

}  // namespace muster::data
