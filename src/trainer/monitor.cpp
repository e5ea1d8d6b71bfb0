#include "monitor.h"

#include <limits>

#include "muster/base/detail/listing.h"

namespace muster::trainer {

bool is_better(double a, double b, MonitorMode mode) noexcept { return mode == MonitorMode("min") ? a < b : a > b; }

double worst_value(MonitorMode mode) noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == MonitorMode("min") ? infinity : -infinity;
}

std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics) {
  return std::string(watcher) + " watches \"" + monitor + "\", which was not logged" +
         known_ones(metrics, [](const auto& one) { return one.first; });
}

}  // namespace muster::trainer
