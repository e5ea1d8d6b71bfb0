#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// The flags of a subcommand, for completion and manual pages, from what its command line is parsed by: the tables of
/// options, or its application of CLI11. Empty for a subcommand that has none but --help.
std::vector<options::Description> command_flags(std::string_view command);

/// Words that may stand after a subcommand: the ids of `muster explain`, the parts of `muster config`.
std::vector<std::string> command_words(std::string_view command);

}  // namespace muster::cli
