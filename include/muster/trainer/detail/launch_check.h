#pragma once

#include <vector>

#include "muster/base/detail/options.h"

namespace muster::trainer {

/// The options of a Trainer that the runtime does not have, each with "trainer." before its name.
std::vector<options::Description> option_descriptions();

/// Checks that a Trainer without options of its own could follow these options, by name.
/// Throws: ConfigError (MU002) for a value that cannot be read, (MU440) with all that contradicts.
void check_launch_options(const options::RawOptions& given_options);

}  // namespace muster::trainer
