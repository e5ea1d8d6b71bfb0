#pragma once

#include "muster/cluster/cluster.h"
#include "muster/launcher/options.h"

namespace muster {

/// Makes the running program a job of several ranks on this node.
/// If a launcher started this process, or one rank is asked for, nothing happens. Otherwise this process becomes local
/// rank 0, and the other local ranks are this program executed again with the same arguments and environment: what
/// stands before the call runs in every rank, so call it first in main().
/// A thread watches the other ranks. If one of them fails, the first cause is found as by run(), printed to stderr, and all
/// ranks, this process included, end within twice `grace` from then on with its exit code (128 + number for a signal). They die with this process, even
/// when it is killed. At exit this process waits for them for `exit_timeout`, and at once ends them if it fails itself.
/// This process's environment variables are set as for a rank of `muster run`, so read_cluster() says the same later.
/// OMP_NUM_THREADS is among them; what has read it before (LibTorch when it was loaded) must be told by the caller.
/// Collective: every process of the job, before any other thread is started.
/// Throws: ConfigError if the count contradicts the launcher's (MU032) or an option is wrong (MU036);
/// LaunchError if a rank cannot be started (MU034) or no port can be had (MU033).
/// Thread safety: once per process at a time, while nobody else reads or writes the environment.
Cluster launch(const LaunchOptions& options);

/// The same with `processes` ranks on this node; 0: as many as the launcher gave, or 1.
Cluster launch(int processes = 0);

}  // namespace muster
