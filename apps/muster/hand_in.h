#pragma once

#include <string>

namespace muster::cli {

/// Runs a command of a shell with this text as its standard input; its output is passed on.
/// Throws: UsageError (MU496), naming `program`, the command's first word, if that is not installed or fails.
void hand_in(const std::string& command, const std::string& text);

}  // namespace muster::cli
