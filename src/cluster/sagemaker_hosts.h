#pragma once

#include <string>
#include <vector>

#include "muster/base/environment.h"

namespace muster::cluster {

/// The containers of a SageMaker training job.
struct SageMakerHosts {
  int current = 0;                      ///< index of this container in `names`
  std::vector<std::string> names = {};  ///< names in the order of their numbers; never empty
  std::string source = {};              ///< variable or file that lists the containers
};

/// Reads SM_HOSTS and SM_CURRENT_HOST, which SageMaker's toolkit sets, otherwise input/config/resourceconfig.json in
/// SAGEMAKER_BASE_DIR (or /opt/ml), which every container has. Requires: in_sagemaker().
/// Throws: ConfigError (MU494) if they cannot be read or are contradictory.
SageMakerHosts read_sagemaker_hosts(const Environment& variables);

}  // namespace muster::cluster
