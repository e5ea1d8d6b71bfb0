#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace muster::comm {

/// The index of a rank in `ranks`; the size of `ranks` if the rank is not among them.
inline int rank_index(const std::vector<int>& ranks, int rank) {
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// The ranks 0 to size - 1.
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace muster::comm
