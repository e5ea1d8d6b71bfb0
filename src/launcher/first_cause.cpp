#include "first_cause.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

#include "muster/base/log.h"

namespace muster::launcher {

FirstCause choose_cause(const std::vector<FirstCause>& failed) {
  auto order = [](const FirstCause& cause) {
    int kind = cause.end.signal == SIGABRT ? 2 : cause.end.signal ? 0 : 1;
    return std::tuple(kind, cause.rank);
  };
  return *std::min_element(failed.begin(), failed.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
}

std::vector<std::string> describe(const FirstCause& cause, const std::deque<std::string>* last_lines) {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f s", static_cast<double>(cause.after.count()) / 1000);
  std::vector<std::string> result;
  result.push_back(log::format("muster: ", "MU035", ": rank ", cause.rank, " ", cause.end.words(), " after ", seconds,
                               cause.end.signal == SIGKILL ? " (somebody's kill -9, or the system was out of memory)" : "",
                               "; all other ranks are ended.", !last_lines ? "" : last_lines->empty() ? " It had written nothing." : " Its last lines:"));
  if (!last_lines) return result;
  for (const auto& line : *last_lines) result.push_back("muster:   " + line);
  return result;
}

}  // namespace muster::launcher
