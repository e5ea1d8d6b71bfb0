#pragma once

#include <string>

namespace muster::cli {

/// Runs a shell command with this text as its standard input; its output is passed on.
/// Throws: UsageError (MU496) with `program`, the command's first word, if it is not installed or fails.
void hand_in(const std::string& command, const std::string& text);

}  // namespace muster::cli
