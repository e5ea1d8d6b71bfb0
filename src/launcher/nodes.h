#pragma once

#include <string>

#include "muster/base/environment.h"
#include "muster/cluster/listening_socket.h"
#include "rank_environment.h"

namespace muster::launcher {

struct Nodes {
  std::string main_address;
  int main_port = 0;
  int node_rank = 0;
  int nodes = 1;
};

/// Throws: ConfigError (MU036) if the options about nodes contradict each other.
void check_nodes(const Nodes& nodes);

/// Sets the job's name and where its ranks meet: the given address for several nodes, the loopback for one.
void place_store(const std::string& main_address, int main_port, Job& job);

/// What the ranks of the job prove themselves by: the secret in `file`, or that of the variables, or for one node a new one.
/// None for several nodes that were given none. Throws: ConfigError (MU068) if what was given is none.
cluster::Secret secret_of_job(const std::string& file, const Environment& variables, int nodes);

/// On the node of rank 0, the socket of the store: bound before any rank runs, so that no other job can take its port.
/// Sets the job's port and descriptor. Elsewhere, and in a world of one, an empty socket.
/// Throws: LaunchError (MU033).
cluster::ListeningSocket open_store(Job& job);

}  // namespace muster::launcher
