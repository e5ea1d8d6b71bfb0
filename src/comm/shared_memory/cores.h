#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::comm {

/// The cores on which a process may run, as bits; none if the system does not say.
using CoreMask = std::array<uint64_t, 16>;

CoreMask own_cores();
CoreMask united(const CoreMask& a, const CoreMask& b);
int count(const CoreMask& cores);

/// As many cores' time as the process's control groups (of a container) grant it; a large number if they do not limit
/// it.
int granted_cores();

}  // namespace muster::comm
