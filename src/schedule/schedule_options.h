#pragma once

#include <string>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::schedule {

/// Throws: ConfigError (MU135) unless `good`.
template <class T>
void require_option(bool good, std::string_view option, const T& value, std::string_view wanted) {
  if (!good)
    throw ConfigError("MU135", formatted("the schedule's option {} is {}; it must be {}", option, value, wanted));
}

}  // namespace muster::schedule
