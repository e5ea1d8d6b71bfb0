#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// Reads one section of an option file. One line on stderr names the keys outside of it that have no effect.
/// Throws: ConfigError (MU304) if there is no such section, or if an option of `known` stands outside of it; (MU004) as
/// options::File::load().
options::File read_config(const std::string& path, const std::string& section,
                          const std::vector<options::Description>& known);

}  // namespace muster::cli
