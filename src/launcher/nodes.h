#pragma once

#include <string>

#include "cluster/listening_socket.h"
#include "muster/base/detail/environment.h"
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

/// Sets the job's name and rendezvous address: the given address for several nodes, the loopback for one.
void place_store(const std::string& main_address, int main_port, Job& job);

/// The secret by which the ranks of the job authenticate: that in `file`, or that in the variables, or for one node a
/// new one. None for several nodes without a given one. Throws: ConfigError (MU068) if the given one is not valid.
cluster::Secret secret_of_job(const std::string& file, const Environment& variables, int nodes);

/// On the node of rank 0, the socket of the store: bound before any rank runs, so that no other job can take its port.
/// Sets the job's port and descriptor. On other nodes, and in a world of one, an empty socket.
/// Throws: LaunchError (MU033).
cluster::ListeningSocket open_store(Job& job);

}  // namespace muster::launcher
