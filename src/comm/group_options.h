#pragma once

#include <string>

#include "comm/group.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// Throws: ConfigError (MU327) for a timeout that is not positive, or too long.
void check_timeouts(const GroupOptions& options);

/// The identity of the first group of ranks, which uses that backend.
GroupIdentity identity_of(const std::string& backend, const GroupOptions& options);

}  // namespace muster::comm
