#pragma once  // for other rooms

#include <vector>

#include "muster/launcher/options.h"

namespace muster {

/// Implements `muster run`: starts one process per rank, watches them, and forwards their output and the signals.
/// Returns the exit code of the first rank that failed (128 + number for a signal), else 0. Prints the root cause of a
/// failure and then ends all ranks within `grace`. If a rank failed only because its connection to another rank broke
/// or timed out, run() first waits to learn what became of that rank: up to `grace`, or up to 10 s if that rank closed
/// its connections and is about to end. The ranks die with this process, even if it is killed.
/// On several nodes, with `max_restarts` or a range of `nodes`, the launchers meet at a rendezvous in the launcher of
/// node 0: a failed rank or a lost node ends the round on all of them, and they begin the next one together.
/// After a failure all ranks are started again, up to `max_restarts` times, each time with a new rendezvous: at once,
/// or after a wait if they fail repeatedly before their first step, and no more after four such failures in a row. The
/// exit code is that of the last round. At the end the cause of each failure is printed. A signal that stops the job
/// also ends it between two rounds, or during a failure.
/// `command` is the program and its arguments; a name without '/' is looked up in PATH.
/// Requires: a process with one thread and no other children.
/// Throws: ConfigError for a wrong option (MU030, MU036, MU510) or a program that cannot be executed (MU031),
/// LaunchError if no port is available (MU033), a rank cannot be started (MU034) or the log folder cannot be written
/// (MU037), and on several nodes as launcher::NodeAgent::await_round() (MU511 to MU516).
int run(const RunOptions& options, const std::vector<std::string>& command);

}  // namespace muster
