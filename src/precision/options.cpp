#include "muster/precision/options.h"

#include <string>

#include "muster/base/detail/listing.h"
#include "muster/base/error.h"

namespace muster::precision {

void unknown_precision(std::string_view name) {
  throw ConfigError("MU130", "unknown precision '" + std::string(name) + "'" +
                                 known_ones(kPrecisionNames, [](const auto& entry) { return entry.name; }));
}

}  // namespace muster::precision
