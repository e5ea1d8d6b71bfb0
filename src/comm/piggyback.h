#pragma once  // for other rooms

#include <cstdint>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// From now on, this rank's operations in the group carry `value` in addition to their own data. No extra message is
/// sent, and ranks need not agree on the value. 0 stops it. Thread safety: any thread.
void attach_piggyback(const Communicator& group, uint64_t value);

/// The last value received from each rank, in operations that ended here while this rank carried a value itself; 0 for
/// a rank that has not sent one yet. A group of one receives nothing, nor do backends whose messages are not Muster's
/// own. Thread safety: any thread.
std::vector<uint64_t> attached_piggybacks(const Communicator& group);

}  // namespace muster::comm
