#include "graph/budget.h"

#include <algorithm>

namespace muster::graph {
namespace {

/// A choice among the first blocks.
struct Choice {
  int64_t bytes;  // that it returns, of those that are needed
  double seconds;
  size_t block;     // the last one that is in it
  size_t previous;  // the choice without that block; itself: the empty choice
};

// Blocks of one shape give few different sums. Others are rounded down to so many.
constexpr int64_t kMostChoices = 4096;

}  // namespace

// Keeps, after each block, the choices that no other one beats in both bytes and time.
std::vector<bool> cheapest_blocks(const std::vector<BlockCost>& costs, int64_t budget) {
  int64_t needed = -budget;
  for (const auto& cost : costs) needed += cost.kept_bytes;
  std::vector<bool> chosen(costs.size(), needed > 0);
  int64_t possible = 0;
  for (const auto& cost : costs) possible += std::max<int64_t>(cost.returned_bytes, 0);
  if (needed <= 0 || possible <= needed) return chosen;

  std::vector<Choice> all{{0, 0, 0, 0}};
  std::vector<size_t> best{0};  // by falling bytes, and so by falling time
  for (size_t block = 0; block < costs.size(); ++block) {
    const auto& cost = costs[block];
    if (cost.returned_bytes <= 0) continue;
    auto candidates = best;
    for (const auto without : best) {
      candidates.push_back(all.size());
      all.push_back({std::min(needed, all[without].bytes + cost.returned_bytes), all[without].seconds + cost.seconds,
                     block, without});
    }
    std::ranges::sort(candidates, [&](size_t a, size_t b) {
      return all[a].bytes != all[b].bytes ? all[a].bytes > all[b].bytes : all[a].seconds < all[b].seconds;
    });
    const auto step = static_cast<int64_t>(candidates.size()) > kMostChoices ? needed / kMostChoices : 0;
    best.clear();
    for (const auto candidate : candidates)
      if (best.empty() ||
          (all[candidate].seconds < all[best.back()].seconds && all[candidate].bytes <= all[best.back()].bytes - step))
        best.push_back(candidate);
  }
  chosen.assign(costs.size(), false);
  for (auto choice = best.front(); all[choice].previous != choice; choice = all[choice].previous)
    chosen[all[choice].block] = true;
  return chosen;
}

}  // namespace muster::graph
