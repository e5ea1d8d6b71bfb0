#include <algorithm>
#include <string>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/parallel/options.h"

namespace muster::parallel {

bool is_comm_hook(std::string_view name) { return std::ranges::find(kCommHooks, name) != kCommHooks.end(); }

void require_comm_hook(std::string_view name) {
  if (!is_comm_hook(name))
    throw ConfigError("MU157", "unknown comm_hook '" + std::string(name) + "'" + known_ones(kCommHooks));
}

}  // namespace muster::parallel
