#pragma once

#include <chrono>
#include <string>

#include "muster/cluster/options.h"

namespace muster {

/// How launch() starts the ranks of this node from inside a program.
struct LaunchOptions {
  ClusterReader cluster_reader = {};  ///< asked before Muster's own readers whether a launcher started this process
  std::chrono::milliseconds exit_timeout = std::chrono::seconds(30);  ///< how long rank 0 waits for the others at exit
  std::chrono::milliseconds grace = std::chrono::seconds(1);  ///< between SIGTERM and SIGKILL when a rank has failed
  std::string main_address = {};                              ///< host of rank 0; needed for several nodes
  int main_port = 0;                                          ///< 0: a free one (one node), 29400 (several)
  int node_rank = 0;                                          ///< this node, 0 to nodes - 1
  int nodes = 1;
  int processes = 0;  ///< ranks on this node; 0: as many as the launcher started, or 1
  int threads = 0;    ///< OMP_NUM_THREADS of each rank; 0: cores / processes, unless the variable is set
};

/// The number of nodes of a job: as many as are available, within two limits. A plain value.
struct NodeRange {
  int min = 1;
  int max = 1;

  constexpr NodeRange(int count = 1) : min(count), max(count) {}  // NOLINT(google-explicit-constructor)
  constexpr NodeRange(int at_least, int at_most) : min(at_least), max(at_most) {}
  friend constexpr bool operator==(const NodeRange&, const NodeRange&) = default;
};

/// How `muster run` starts and watches the ranks of this node.
struct RunOptions {
  std::string accelerator = {};             ///< kind of the devices; empty: an accelerator if there is one
  std::string devices = "auto";             ///< a count, a list of indices ("0,2"), or "auto"
  std::string devices_place = "--devices";  ///< where `devices` was given, for messages
  bool fork_ranks = true;                   ///< fork from one process that has loaded the program, if it links Muster
  std::chrono::milliseconds grace = std::chrono::seconds(1);  ///< between SIGTERM and SIGKILL
  std::chrono::milliseconds heartbeat_timeout =
      std::chrono::seconds(15);  ///< a node that sends no sign of life for this long is lost
  std::chrono::milliseconds join_timeout =
      std::chrono::minutes(10);  ///< how long the launchers of several nodes wait for each other
  std::chrono::milliseconds last_call_timeout =
      std::chrono::seconds(30);   ///< how long they wait for more nodes once the minimum has joined
  std::string log_dir = {};       ///< folder for a file rank_<r>.log per rank; empty: none
  std::string main_address = {};  ///< host of rank 0; needed for several nodes
  int main_port = 0;              ///< 0: a free one (one node), 29400 (several)
  int max_restarts = 0;           ///< how often all ranks are restarted after a rank failed or a node was lost
  int node_rank = 0;
  NodeRange nodes = 1;
  std::string options = {};      ///< the program's options in one line, passed on to the ranks; empty: none
  bool prefix = true;            ///< "[rank] " before each line of output
  std::string secret_file = {};  ///< file of the job's secret, mode 0600; empty: MUSTER_SECRET, or a new one (one node)
  int threads = 0;               ///< OMP_NUM_THREADS of each rank; 0: cores / ranks, unless the variable is set
};

}  // namespace muster
