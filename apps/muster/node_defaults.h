#pragma once

#include "muster/base/detail/options.h"
#include "muster/base/environment.h"

namespace muster::cli {

/// Adds values about nodes that the options of `muster run` leave open and the cluster provides. SageMaker and Kubeflow
/// provide all; if several nodes are requested, Kubernetes, SLURM and PBS provide the number of this node and the first
/// host.
/// Throws: as cluster::find_node_place().
void add_place_of_node(const Environment& variables, options::RawOptions& texts);

}  // namespace muster::cli
