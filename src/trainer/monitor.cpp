#include "monitor.h"

#include <limits>
#include <vector>

#include "base/listing.h"

namespace muster::trainer {

bool is_better(double a, double b, MonitorMode mode) noexcept { return mode == MonitorMode("min") ? a < b : a > b; }

double worst_value(MonitorMode mode) noexcept {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == MonitorMode("min") ? infinity : -infinity;
}

std::optional<double> value_on_main_rank(const Runtime& runtime, const Metrics& metrics, const std::string& name) {
  std::vector<double> own;
  if (const auto found = metrics.find(name); found != metrics.end()) own.push_back(found->second);
  if (runtime.world_size() > 1) own = runtime.broadcast_object(own);
  return own.empty() ? std::nullopt : std::optional(own.front());
}

std::string not_logged(std::string_view watcher, const std::string& monitor, const Metrics& metrics) {
  return std::string(watcher) + " watches \"" + monitor + "\", which was not logged" +
         known_ones(metrics, [](const auto& one) { return one.first; });
}

}  // namespace muster::trainer
