#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/detail/environment.h"

namespace muster::launcher {

/// The environment of a fork server: that of a rank, without what differs between ranks.
Environment fork_server_environment(const Environment& rank);

/// The name of a variable that differs and that a library may have read already, when the program was loaded. Without
/// one, a rank with the environment `rank` can be forked from a fork server with the environment `server`.
std::optional<std::string> fixed_difference(const Environment& server, const Environment& rank);

/// What such a rank changes, as fork_protocol.h has it. `descriptor_variables` get the numbers of its descriptors.
std::string variable_words(const Environment& server, const Environment& rank,
                           const std::vector<std::string>& descriptor_variables);

}  // namespace muster::launcher
