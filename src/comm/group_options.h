#pragma once

#include <string>

#include "comm/group.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// Throws: ConfigError (MU327) for a time-out that is not positive, or too long.
void check_timeouts(const GroupOptions& options);

/// The first group of ranks, over that backend.
GroupIdentity identity_of(const std::string& backend, const GroupOptions& options);

}  // namespace muster::comm
