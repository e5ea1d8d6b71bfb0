#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launcher/rank_environment.h"
#include "launcher/rendezvous/node_agent.h"
#include "launcher/restarts.h"
#include "muster/launcher/options.h"

namespace muster::launcher {

/// Whether the launchers of the nodes meet at a rendezvous, so that rounds begin and end on all of them at once.
bool has_rendezvous(const RunOptions& options);

/// Throws: ConfigError (MU036) for time-outs that are not positive, (MU510) if the job has no secret.
void check_rendezvous(const RunOptions& options, const cluster::Secret& secret);

/// Runs the rounds that the rendezvous begins. `run_round` starts this node's ranks and returns when the last has
/// ended. Returns the exit code of the launcher. `plan`: the plan of this node. `command`: the program and its
/// arguments.
/// Throws: as NodeAgent and `run_round`.
int run_rounds_of_nodes(const RunOptions& options, const Job& plan, const std::vector<std::string>& command,
                        const RelayedSignals& signals, const std::function<Round(const Job&, NodeAgent&)>& run_round);

}  // namespace muster::launcher
