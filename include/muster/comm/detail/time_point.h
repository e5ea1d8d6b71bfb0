#pragma once

#include <chrono>

namespace muster::comm {

using TimePoint = std::chrono::steady_clock::time_point;

}  // namespace muster::comm
