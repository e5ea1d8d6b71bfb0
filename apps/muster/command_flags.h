#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// The flags of a subcommand, for completion and manual pages, from the source that parses its command line: the tables
/// of options, or its CLI11 application. Empty for a subcommand that has only --help.
std::vector<options::Description> command_flags(std::string_view command);

/// Words that may follow a subcommand: the ids of `muster explain`, the parts of `muster config`.
std::vector<std::string> command_words(std::string_view command);

}  // namespace muster::cli
