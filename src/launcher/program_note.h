#pragma once

#include <string>

namespace muster::launcher {

/// Whether the file is an executable for this machine that can become a fork server of this launcher: it contains a
/// ForkNote of this version, and runs with the rights of the user who executes it. False if it cannot be read.
bool can_be_fork_server(const std::string& path);

}  // namespace muster::launcher
