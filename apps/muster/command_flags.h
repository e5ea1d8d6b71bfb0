#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/detail/options.h"

namespace muster::cli {

/// The flags of a subcommand, for completion and manual pages: those of `run` and `launch` are the options of the one
/// table. Empty for a subcommand whose words are files.
std::vector<options::Description> command_flags(std::string_view command);

/// Words that may stand after a subcommand: the ids of `muster explain`, the parts of `muster config`.
std::vector<std::string> command_words(std::string_view command);

}  // namespace muster::cli
