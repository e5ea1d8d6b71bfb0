#include <array>
#include <string>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/device/options.h"

namespace muster::device {

void unknown_keep_memory(std::string_view name) {
  throw ConfigError("MU002", "keep_memory (MUSTER_KEEP_MEMORY) is '" + std::string(name) + "'" +
                                 known_ones(std::array{"auto", "on (1)", "off (0)"}));
}

}  // namespace muster::device
