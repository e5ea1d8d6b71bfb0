#include "muster/precision/options.h"

#include <string>

#include "muster/base/error.h"

namespace muster::precision {

void unknown_precision(std::string_view name) {
  std::string known;
  for (const auto& entry : kPrecisionNames) known += (known.empty() ? "" : ", ") + std::string(entry.name);
  throw ConfigError("MU130", "unknown precision '" + std::string(name) + "'; the known ones are " + known);
}

}  // namespace muster::precision
