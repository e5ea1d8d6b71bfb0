#pragma once

#include "muster/base/detail/environment.h"
#include "muster/base/detail/options_file.h"

namespace muster::cli {

/// Adds what the options of `muster run` do not say of nodes and the cluster does: SageMaker and Kubeflow say all;
/// where several nodes are asked for, Kubernetes, SLURM and PBS say which this one is, and who the first one is.
/// Throws: as cluster::find_node_place().
void add_place_of_node(const Environment& variables, options::RawOptions& texts);

}  // namespace muster::cli
