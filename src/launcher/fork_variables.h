#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/base/detail/environment.h"

namespace muster::launcher {

/// The environment of a fork server: a rank's, without the variables that differ between ranks.
Environment fork_server_environment(const Environment& rank);

/// The name of a variable that differs and that a library may have read when the program was loaded. If there is none,
/// a rank with the environment `rank` can be forked from a fork server with the environment `server`.
std::optional<std::string> fixed_difference(const Environment& server, const Environment& rank);

/// The changes for such a rank, in the format of fork_protocol.h. `descriptor_variables` get the numbers of its
/// descriptors.
std::string variable_words(const Environment& server, const Environment& rank,
                           const std::vector<std::string>& descriptor_variables);

}  // namespace muster::launcher
