#pragma once

#include <string>
#include <vector>

namespace muster {

/// The names that loading did not match. Both empty if strict.
struct IncompatibleKeys {
  std::vector<std::string> missing_keys;     ///< Destinations for which the files have no value.
  std::vector<std::string> unexpected_keys;  ///< Tensors of the files without a destination.
};

}  // namespace muster
