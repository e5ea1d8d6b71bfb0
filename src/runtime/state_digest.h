#pragma once

#include "muster/tree/state.h"

namespace muster::runtime {

/// Equal for states that are identical(), otherwise different except by chance (XXH3, 64 bits).
std::uint64_t digest(const State& state);

}  // namespace muster::runtime
