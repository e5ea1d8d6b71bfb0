#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"

namespace muster::testing {

/// Runs `body` as `size` ranks, which are threads of this process. With a seed, they run one at a time in an order
/// drawn from it, so that failures are reproducible; with seed 0 they run concurrently.
/// Throws: the first exception of a rank, as an Error (MU062 unless it has an id) that names rank and seed; LaunchError
/// (MU064) if `size` is below 1.
void run_threads(int size, uint64_t seed, const std::function<void(comm::Communicator)>& body);

/// How one rank's process ended.
struct RankResult {
  int exit_code = 0;       ///< the code given to exit(), if `signal` is 0
  int signal = 0;          ///< the signal that ended it
  std::string output;      ///< what it wrote to stdout and stderr
  bool timed_out = false;  ///< it was killed at the timeout
  bool ok() const noexcept { return exit_code == 0 && signal == 0 && !timed_out; }
};

struct ProcessWorldOptions {
  std::vector<std::string> arguments = {};  ///< program arguments with which it reaches this call again
  std::string label = "";                   ///< distinguishes several calls in one test
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
};

/// Runs `body` as `size` ranks, which are processes. It executes this program `size` times with options.arguments, or
/// forks if start_fork_server() was called. Each new process reaches this call, runs `body` there as its rank, and
/// exits with the value that `body` returned (70 if it threw). The call in the first process waits for all ranks and
/// returns how they ended, in rank order. In a rank, calls with another label or size return at once with `size`
/// successful results. A call returns soon after its ranks have ended or its time-out has passed, even if child
/// processes of the ranks still run. Requires: a program makes one call at a time. Throws: LaunchError (MU064) if
/// processes cannot be started, or the program ignores SIGCHLD.
std::vector<RankResult> run_processes(int size, const std::function<int(const ClusterEnvironment&)>& body,
                                      const ProcessWorldOptions& options = {});

/// Makes run_processes() fork its ranks from this process in its current state, instead of starting the program again,
/// which costs 0.3 s of CPU time for LibTorch alone. Python's multiprocessing calls this the start method "forkserver".
/// Call it first in main(), before any thread or device is started. A rank also returns from this call, with its own
/// arguments. Ranks get the environment and the working directory of the process that requests them; if variables that
/// libraries read at load (OMP_, LD_, ...) have changed, the program is started again. All ranks have equal addresses,
/// so bugs that depend on the order of pointers show only without the fork server. Throws: LaunchError (MU064) if the
/// server cannot be started.
void start_fork_server(int& argc, char**& argv);

}  // namespace muster::testing
