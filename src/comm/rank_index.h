#pragma once

#include <algorithm>
#include <vector>

namespace muster::comm {

/// The place of a rank among these; their number if it is none of them.
inline int rank_index(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace muster::comm
