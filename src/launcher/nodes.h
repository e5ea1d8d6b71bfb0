#pragma once

#include <string>

#include "cluster/listening_socket.h"
#include "muster/base/environment.h"
#include "rank_environment.h"

namespace muster::launcher {

struct Nodes {
  std::string main_address;
  int main_port = 0;
  int node_rank = 0;
  int nodes = 1;
};

/// Throws: ConfigError (MU036) if the options about nodes are contradictory.
void check_nodes(const Nodes& nodes);

/// Sets the job's name and rendezvous address: the given address for several nodes, the loopback for one.
void place_store(const std::string& main_address, int main_port, Job& job);

/// The secret with which the ranks of the job authenticate each other: the one in `file`, otherwise the one in the
/// variables, otherwise for a single node a new one, and for several nodes none. Throws: ConfigError (MU068) if a given
/// secret is not valid.
cluster::Secret secret_of_job(const std::string& file, const Environment& variables, int nodes);

/// On the node of rank 0: binds the socket of the store before any rank runs, so that no other job can take its port,
/// and sets the job's port and descriptor. On other nodes, and in a world of one: an empty socket.
/// Throws: LaunchError (MU033).
cluster::ListeningSocket open_store(Job& job);

}  // namespace muster::launcher
