#pragma once  // for other rooms

#include <ATen/core/Generator.h>

#include "muster/comm/communicator.h"

namespace muster::data {

/// Sets the generator to rank 0's state. Collective: with generators of one type on all ranks.
void broadcast_state(const comm::Communicator& group, at::Generator generator);

}  // namespace muster::data
