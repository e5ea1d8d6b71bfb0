#pragma once

#include "muster/cluster/cluster.h"
#include "muster/launcher/options.h"

namespace muster {

/// Turns the running program into a job of several ranks on this node.
/// Does nothing if a launcher started this process, or if one rank is requested. Otherwise this process becomes local
/// rank 0, and the other local ranks execute this program again with the same arguments and environment. The code
/// before the call runs in every rank, so call it first in main().
/// A thread watches the other ranks. If one of them fails, it determines the root cause as run() does, and prints it to
/// stderr. All ranks, this process included, then end within twice `grace`, with the exit code of that cause (128 +
/// number for a signal). The other ranks die with this process, even if it is killed. At exit this process waits for
/// them for `exit_timeout`; if it fails itself, it ends them at once.
/// Sets the environment variables of this process as for a rank of `muster run`, so that read_cluster_environment()
/// later returns this function's result. OMP_NUM_THREADS is one of them; the caller must pass it on to libraries that
/// have already read it (LibTorch reads it at load). Collective: every process of the job, before any other thread is
/// started.
/// Throws: ConfigError if the count contradicts the launcher's (MU032) or an option is wrong (MU036); LaunchError if a
/// rank cannot be started (MU034) or no port is available (MU033).
/// Thread safety: one call at a time in a process, while no other thread reads or writes the environment.
ClusterEnvironment launch(const LaunchOptions& options);

/// Calls launch(options) with `processes` ranks on this node; 0: as many as the launcher started, or 1.
ClusterEnvironment launch(int processes = 0);

}  // namespace muster
