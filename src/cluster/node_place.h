#pragma once  // for other rooms

#include <optional>
#include <string>

#include "muster/base/environment.h"

namespace muster::cluster {

/// This host's place among the hosts of a job, as the cluster states it, for a launcher that runs once per host.
struct NodePlace {
  std::string devices = {};       ///< ranks on each node: a count or "auto"; empty: not stated
  std::string main_address = {};  ///< host of node 0; empty: not stated
  int main_port = 0;              ///< port on node 0; 0: not stated
  std::optional<int> node_rank = {};
  /// Set only by clusters that start one command on every node: SageMaker, Kubeflow.
  std::optional<int> nodes = {};
  std::string source = {};  ///< variable or file with the information
};

/// Reads Kubeflow's PET_ variables, SageMaker's hosts, the index of a Kubernetes Indexed Job, and the node of a SLURM
/// or PBS task; nullopt if none of them is set.
/// Throws: ConfigError (MU021) for a value that is not a number, (MU025) for a malformed node list, (MU494) for
/// unreadable hosts of SageMaker.
std::optional<NodePlace> find_node_place(const Environment& variables);

}  // namespace muster::cluster
