#pragma once  // for other rooms

#include <optional>
#include <string>

#include "muster/base/detail/environment.h"

namespace muster::cluster {

/// What a cluster says of this host's place among the hosts of a job, for a launcher that runs once on each of them.
struct NodePlace {
  std::string devices = {};       ///< ranks on each node: a count or "auto"; empty: not said
  std::string main_address = {};  ///< host of node 0; empty: not said
  int main_port = 0;              ///< port there; 0: not said
  std::optional<int> node_rank = {};
  /// Set only by clusters that start one command on every node: SageMaker, Kubeflow.
  std::optional<int> nodes = {};
  std::string source = {};  ///< the variable or file that says so
};

/// Reads Kubeflow's PET_ variables, SageMaker's hosts, the index of a Kubernetes Indexed Job, and the node of a task of
/// SLURM or PBS; nullopt: none of them is there.
/// Throws: ConfigError (MU021) for a value that is not a number, (MU025) a node list, (MU494) SageMaker's file.
std::optional<NodePlace> find_node_place(const Environment& variables);

}  // namespace muster::cluster
