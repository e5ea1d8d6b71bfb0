#pragma once  // for other rooms

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

namespace muster {

/// The time until a deadline in milliseconds, rounded up, as poll() takes it; 0 once it has passed.
inline int milliseconds_until(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, std::numeric_limits<int>::max()));
}

}  // namespace muster
