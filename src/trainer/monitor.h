#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "muster/runtime.h"
#include "muster/trainer/options.h"

/// Helpers for all that watches a logged metric: callbacks, and schedulers such as ReduceLROnPlateau.
/// Why: docs/decisions/0103-what-ranks-decide-together.md.
namespace muster::trainer {

/// Whether a is better than b. NaN is never better.
bool is_better(double a, double b, MonitorMode mode) noexcept;
/// The value that is worse than every other number.
double worst_value(MonitorMode mode) noexcept;
/// Rank 0's value of a metric, by which all ranks decide; nullopt if rank 0 has none. Collective.
std::optional<double> value_on_main_rank(const Runtime& runtime, const Metrics& metrics, const std::string& name);
/// The message that `watcher` monitors a name that is not among the metrics, with a list of these.
std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics);

}  // namespace muster::trainer
