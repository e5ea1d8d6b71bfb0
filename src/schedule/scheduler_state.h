#pragma once

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/schedule/scheduler.h"

namespace muster::schedule {

/// Throws: ConfigError (MU135) unless `good`.
template <class T>
void require_option(bool good, std::string_view option, const T& value, std::string_view wanted) {
  if (!good)
    throw ConfigError("MU135", formatted("the schedule's option {} is {}; it must be {}", option, value, wanted));
}

/// The values of this name. Throws: UsageError (MU138) if there are none, or not `count` of them.
const std::vector<double>& read_state(const SchedulerState& state, const std::string& name, size_t count);
double read_number(const SchedulerState& state, const std::string& name);
inline int64_t read_count(const SchedulerState& state, const std::string& name) {
  return static_cast<int64_t>(read_number(state, name));
}
inline std::vector<double> as_state(int64_t count) { return {static_cast<double>(count)}; }

}  // namespace muster::schedule
