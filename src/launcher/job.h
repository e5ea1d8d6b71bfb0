#pragma once

#include "cluster/listening_socket.h"
#include "cluster/secret.h"
#include "muster/base/environment.h"

namespace muster::launcher {

/// A round: one start of the ranks of all nodes. Plain values.
struct StartRound {
  std::string main_address = {};
  int main_port = 0;
  std::string name =
      {};  ///< of the job in this round: equal on every rank of every node; on one node, different for every job
  int node_rank = 0;
  int nodes = 1;
  int restarts = 0;        ///< number of restarts of the ranks
  std::int64_t start = 0;  ///< start of the whole job in milliseconds since 1970; 0: not passed
};

/// A round with the settings for the ranks of one node. Plain values.
struct Job : StartRound {
  int cores = 1;  ///< cores of this node, divided among its ranks as OMP_NUM_THREADS
  std::vector<int> device_indices;
  bool given_secret = false;  ///< true if the user gave the secret, so that every round uses it
  std::string options;        ///< options of the program in the form of options::write_line(); empty: not passed
  int processes = 1;          ///< ranks on this node
  cluster::Secret secret;     ///< secret of the job; empty: not passed
  int store_fd = -1;          ///< listening socket of the store, for rank 0
  int threads = 0;            ///< OMP_NUM_THREADS; 0: cores / processes unless the variable is set
  std::vector<std::string> visible_devices;  ///< device that each local rank sees; empty: all ranks see all

  int world_size() const { return nodes * processes; }
  int rank_of(int local_rank) const { return node_rank * processes + local_rank; }
};

/// The environment of one rank: `parent` without the variables of other launchers, plus the rank's variables.
Environment rank_environment(const Environment& parent, const Job& job, int local_rank);

/// A name for a job on one node that differs from the name of any other running or recent job.
std::string new_job_name();

/// Throws: ConfigError (MU036) if the options about nodes are contradictory.
void check_nodes(const StartRound& nodes);

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
