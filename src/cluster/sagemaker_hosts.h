#pragma once

#include <string>
#include <vector>

#include "muster/base/detail/environment.h"

namespace muster::cluster {

/// The containers of a SageMaker training job.
struct SageMakerHosts {
  int current = 0;                      ///< index of this one in `names`
  std::vector<std::string> names = {};  ///< in the order of their numbers; never empty
  std::string source = {};              ///< the variable or file that lists them
};

/// From SM_HOSTS and SM_CURRENT_HOST, which SageMaker's toolkit sets, else from input/config/resourceconfig.json in
/// SAGEMAKER_BASE_DIR (or /opt/ml), which is in every container. Requires: in_sagemaker().
/// Throws: ConfigError (MU494) if they cannot be read or contradict themselves.
SageMakerHosts read_sagemaker_hosts(const Environment& variables);

}  // namespace muster::cluster
