#pragma once

#include <string>
#include <vector>

namespace muster {

/// What loading did not match. Both empty if strict.
struct LoadReport {
  std::vector<std::string> missing;     ///< Destinations for which the files have no value.
  std::vector<std::string> unexpected;  ///< Tensors of the files without a destination.
};

}  // namespace muster
