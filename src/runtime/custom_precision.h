#pragma once

#include <string>

#include "muster/comm/communicator.h"
#include "muster/precision/options.h"
#include "muster/strategy/options.h"

/// What the runtime does for a precision policy of the program's own; nothing for a built-in precision.
namespace muster::runtime {

/// "mine (given by the program; parameters BFloat16, computed in BFloat16)": its name and what it says of itself.
std::string describe(const Precision& precision);

/// The strategy with the policy's reduce_dtype(), where its options set none.
/// Throws: ConfigError (MU311) if it cannot sum gradients in that dtype.
Strategy with_reduce_dtype(const Strategy& strategy, const Precision& precision, int world_size);

/// Throws: ConfigError (MU312) on every rank if ranks have different policies. Collective: ranks with a policy of the
/// program's own.
void require_same_precision(const comm::Communicator& group, const Precision& precision);

}  // namespace muster::runtime
