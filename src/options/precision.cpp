#include <string>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/precision/options.h"

namespace muster::precision {

void a_number_for_a_precision_is_16_32_or_64(int bits) {
  throw ConfigError("MU130", "unknown precision " + std::to_string(bits) +
                                 "; the known numbers are 16 (16-mixed), 32 (32-true) and 64 (64-true)");
}

void unknown_precision(std::string_view name) {
  throw ConfigError("MU130", "unknown precision '" + std::string(name) + "'" +
                                 known_ones(kPrecisionNames, [](const auto& entry) { return entry.name; }));
}

}  // namespace muster::precision
