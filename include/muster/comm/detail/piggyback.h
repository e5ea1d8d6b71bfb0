#pragma once

#include <cstdint>
#include <vector>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// From now on, this rank's operations in the group carry `word` in addition to their own data: no extra message is
/// sent, and ranks need not agree on it. 0 stops it. Thread safety: any thread.
void attach_word(const Communicator& group, uint64_t word);

/// The last word received from each rank, in operations that ended here while this rank carried a word itself; 0 for a
/// rank from which none was received yet. A group of one, and backends whose messages are not Muster's own, receive
/// nothing. Thread safety: any thread.
std::vector<uint64_t> attached_words(const Communicator& group);

}  // namespace muster::comm
