#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/rank_index.h"
#include "muster/base/format.h"

namespace muster::comm {

std::vector<int> job_ranks_of(const GroupIdentity& identity, int size) {
  if (!identity.ranks.empty()) return identity.ranks;
  return all_ranks(size);
}

std::string name_with_job_ranks(const std::string& name, const std::vector<int>& job_ranks) {
  constexpr std::size_t kShown = 16;
  std::string ranks;
  bool same = true;
  for (std::size_t i = 0; i < job_ranks.size(); ++i) {
    same = same && job_ranks[i] == static_cast<int>(i);
    if (i < kShown) ranks += (i ? ", " : "") + std::to_string(job_ranks[i]);
  }
  if (same) return name;
  return formatted("{} (its ranks, in order, are {}{} of the job)", name, ranks,
                   job_ranks.size() > kShown ? ", ..." : "");
}
}  // namespace muster::comm
