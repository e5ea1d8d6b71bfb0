#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/secret.h"
#include "muster/base/detail/environment.h"

namespace muster::launcher {

/// The settings that the ranks of one node get. Plain values.
struct Job {
  int cores = 1;  ///< of this node, divided among its ranks as OMP_NUM_THREADS
  std::vector<int> device_indices;
  bool given_secret = false;  ///< the user has given it, so that it stays the same in every round
  std::string main_address;
  int main_port = 0;
  std::string name;  ///< the same on every rank of every node; on one node different for every job
  int node_rank = 0;
  int nodes = 1;
  std::string options;     ///< of the program, as options::write_line() writes them; empty: not passed
  int processes = 1;       ///< ranks on this node
  int restarts = 0;        ///< how often the ranks were started again
  std::int64_t start = 0;  ///< in milliseconds since 1970; 0: not passed
  cluster::Secret secret;  ///< none: not passed
  int store_fd = -1;       ///< for rank 0
  int threads = 0;         ///< OMP_NUM_THREADS; 0: cores / processes unless the variable is set
  std::vector<std::string> visible_devices;  ///< what each local rank sees alone; empty: all see all

  int world_size() const { return nodes * processes; }
  int rank_of(int local_rank) const { return node_rank * processes + local_rank; }
};

/// The environment of one rank: `parent` without the variables of other launchers, plus the rank's variables.
Environment rank_environment(const Environment& parent, const Job& job, int local_rank);

/// A name for a job on one node, different from that of any other running or recent job.
std::string new_job_name();

}  // namespace muster::launcher
