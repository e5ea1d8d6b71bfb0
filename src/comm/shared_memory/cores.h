#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace muster::comm {

/// The cores on which a process may run, as bits; no bit is set if the system does not tell.
using CoreMask = std::array<uint64_t, 16>;

CoreMask own_cores();
CoreMask united(const CoreMask& a, const CoreMask& b);
int count(const CoreMask& cores);

/// The number of cores' worth of time that the process's control groups (of a container) grant; a large number if they
/// set no limit.
int granted_cores();

}  // namespace muster::comm
