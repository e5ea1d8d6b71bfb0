#pragma once

#include <string>
#include <vector>

#include "muster/launcher/options.h"

namespace muster {

/// What `muster run` does: starts one process per rank, watches them, passes their output and the signals on.
/// Returns the exit code of the first rank that failed (128 + number for a signal), else 0. Prints the first cause of a
/// failure, for which it waits up to `grace` where the rank that failed has only lost another one (up to 10 s where that one
/// closed its connections and is about to end), and then ends all ranks within `grace`. The ranks die with this process, even when it is killed.
/// `command` is the program and its arguments; a name without '/' is looked up in PATH.
/// Requires: a process with one thread, which has no other children.
/// Throws: ConfigError for a wrong option (MU030, MU036) or a program that cannot be executed (MU031), LaunchError if a
/// port cannot be had (MU033), a rank cannot be started (MU034) or the log folder cannot be written (MU037).
int run(const RunOptions& options, const std::vector<std::string>& command);

}  // namespace muster
