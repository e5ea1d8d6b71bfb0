#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "muster/runtime.h"
#include "muster/trainer/options.h"

/// What watches a logged metric: callbacks, and schedules such as ReduceLROnPlateau.
namespace muster::trainer {

/// Whether a is better than b. NaN is never better.
bool is_better(double a, double b, MonitorMode mode) noexcept;
/// The value that every other number is better than.
double worst_value(MonitorMode mode) noexcept;
/// The value that rank 0 has of a metric, by which all ranks decide; nullopt if it has none. Collective.
std::optional<double> value_on_main_rank(const Runtime& runtime, const Metrics& metrics, const std::string& name);
/// Says that `watcher` watches a name that is not among the metrics, and lists these.
std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics);

}  // namespace muster::trainer
