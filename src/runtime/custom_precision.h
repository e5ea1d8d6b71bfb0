#pragma once

#include <string>

#include "muster/comm/communicator.h"
#include "muster/precision/options.h"
#include "muster/strategy/options.h"

/// The runtime's part of a custom precision policy; these functions do nothing for a built-in precision.
/// Why: docs/decisions/0086-a-precision-policy-of-the-programs-own.md.
namespace muster::runtime {

/// "mine (given by the program; parameters BFloat16, computed in BFloat16)": the policy's name and its own description.
std::string describe(const Precision& precision);

/// The strategy with the policy's reduce_dtype(), where its options set none.
/// Throws: ConfigError (MU311) if it cannot sum gradients in that dtype.
Strategy with_reduce_dtype(const Strategy& strategy, const Precision& precision, int world_size);

/// Throws: ConfigError (MU312) on every rank if ranks have different policies. Collective: ranks with a custom policy.
void require_same_precision(const comm::Communicator& group, const Precision& precision);

}  // namespace muster::runtime
