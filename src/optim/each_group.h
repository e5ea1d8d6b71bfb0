#pragma once  // for other rooms

#include <string_view>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/options.h"

namespace muster::optim {

/// Expands an option to one value per group. Throws: ConfigError (MU135) unless there is one value or `groups` values.
template <class T>
std::vector<T> each_group(const PerGroup<T>& given, size_t groups, std::string_view option) {
  const auto& values = given.values();
  if (values.size() != 1 && values.size() != groups)
    throw ConfigError("MU135", formatted("option {} has {} values; give one, or one for each of the optimizer's {} "
                                         "parameter groups",
                                         option, values.size(), groups));
  return values.size() == groups ? values : std::vector<T>(groups, values.front());
}

}  // namespace muster::optim
