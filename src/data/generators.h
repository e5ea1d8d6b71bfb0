#pragma once  // for other rooms

#include <ATen/core/Generator.h>

#include "muster/comm/communicator.h"

namespace muster::data {

/// Gives the generator the state that rank 0's has. Collective: with generators of one type on all ranks.
void broadcast_state(const comm::Communicator& group, at::Generator generator);

}  // namespace muster::data
