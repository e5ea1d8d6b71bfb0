#pragma once

#include <cstdint>
#include <vector>

#include "muster/dist/communicator.h"

namespace muster::dist {

/// This rank's operations in the group carry `word` from now on, beside what they are for: no message is sent for it, and ranks need not
/// agree in it. 0 ends it. Thread safety: any thread.
void say(const Communicator& group, uint64_t word);

/// What each rank said last, in operations that ended here while this rank said something; 0 for one that was not heard yet.
/// A group of one, and backends without messages of our own, hear nothing. Thread safety: any thread.
std::vector<uint64_t> heard(const Communicator& group);

}  // namespace muster::dist
