#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/secret.h"
#include "muster/base/environment.h"

namespace muster::launcher {

/// Settings for the ranks of one node. Plain values.
struct Job {
  int cores = 1;  ///< cores of this node, divided among its ranks as OMP_NUM_THREADS
  std::vector<int> device_indices;
  bool given_secret = false;  ///< true if the user gave the secret, so that every round uses it
  std::string main_address;
  int main_port = 0;
  std::string name;  ///< equal on every rank of every node; on one node, different for every job
  int node_rank = 0;
  int nodes = 1;
  std::string options;     ///< options of the program in the form of options::write_line(); empty: not passed
  int processes = 1;       ///< ranks on this node
  int restarts = 0;        ///< number of restarts of the ranks
  std::int64_t start = 0;  ///< start of the job in milliseconds since 1970; 0: not passed
  cluster::Secret secret;  ///< secret of the job; empty: not passed
  int store_fd = -1;       ///< listening socket of the store, for rank 0
  int threads = 0;         ///< OMP_NUM_THREADS; 0: cores / processes unless the variable is set
  std::vector<std::string> visible_devices;  ///< device that each local rank sees; empty: all ranks see all

  int world_size() const { return nodes * processes; }
  int rank_of(int local_rank) const { return node_rank * processes + local_rank; }
};

/// The environment of one rank: `parent` without the variables of other launchers, plus the rank's variables.
Environment rank_environment(const Environment& parent, const Job& job, int local_rank);

/// A name for a job on one node that differs from the name of any other running or recent job.
std::string new_job_name();

}  // namespace muster::launcher
