#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/cluster/cluster.h"
#include "muster/comm/communicator.h"

namespace muster::testing {

/// Runs `body` as `size` ranks, which are threads of this process. With a seed they run one at a time in an order drawn
/// from it, so that a failure is reproducible; with seed 0 they run concurrently.
/// Throws: what a rank threw first, as an Error (MU062 unless it has an id) that names rank and seed; LaunchError
/// (MU064) for no rank.
void run_threads(int size, uint64_t seed, const std::function<void(comm::Communicator)>& body);

/// How one rank's process ended.
struct RankResult {
  int exit_code = 0;       ///< as from exit(), if `signal` is 0
  int signal = 0;          ///< the signal that ended it
  std::string output;      ///< what it wrote to stdout and stderr
  bool timed_out = false;  ///< it was killed at the timeout
  bool ok() const noexcept { return exit_code == 0 && signal == 0 && !timed_out; }
};

struct ProcessWorldOptions {
  std::vector<std::string> arguments = {};  ///< for the program, so that it reaches the same call again
  std::string label = "";                   ///< distinguishes several calls in one test
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
};

/// Runs `body` as `size` ranks, which are processes. It executes this program again `size` times with the arguments of
/// the options, or forks where start_fork_server() has been called. Each new process reaches this call, runs `body`
/// there as its rank, and exits with the value that `body` returned (70 if it threw). The call in the first process
/// waits for all ranks and returns how they ended, in rank order. In a rank, calls with another label or size return at
/// once with `size` successful results. A call returns soon after its ranks have ended or its time-out has passed,
/// whatever children of the ranks do. Requires: no two calls of a program at once. Throws: LaunchError (MU064) if
/// processes cannot be started, or the program ignores SIGCHLD.
std::vector<RankResult> run_processes(int size, const std::function<int(const ClusterEnvironment&)>& body,
                                      const ProcessWorldOptions& options = {});

/// Makes the ranks of run_processes() forks of this process as it is now, instead of starting the program again, which
/// takes 0.3 s of a processor for LibTorch alone. Python's multiprocessing calls this the start method "forkserver".
/// Call it first in main(), before a thread or an open device is there. A rank returns from this call, too, with its
/// own arguments. Ranks have the environment and the folder of the process that asks for them; where variables that
/// libraries read at load have changed (OMP_, LD_, ...), the program is started again. Their addresses are equal, so
/// what depends on the order of pointers is only seen without it. Throws: LaunchError (MU064) if the server cannot be
/// started.
void start_fork_server(int& argc, char**& argv);

}  // namespace muster::testing
