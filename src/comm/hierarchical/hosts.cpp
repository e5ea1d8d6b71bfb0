#include "comm/hierarchical/hosts.h"

#include <algorithm>
#include <map>
#include <utility>

#include "muster/base/format.h"

namespace muster::comm {

Hosts::Hosts(std::vector<int> host_of_rank) : host_of_rank_(std::move(host_of_rank)) {
  std::map<int, int> numbers;
  for (std::size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
    const auto [entry, is_new] = numbers.emplace(host_of_rank_[rank], count());
    if (is_new) firsts_.push_back(static_cast<int>(rank)), sizes_.push_back(0);
    host_of_rank_[rank] = entry->second;
    ++sizes_[static_cast<std::size_t>(entry->second)];
  }
}

int Hosts::largest() const { return *std::max_element(sizes_.begin(), sizes_.end()); }

std::string Hosts::obstacle() const {
  if (count() == 1) return "all ranks are on one host";
  if (largest() == 1) return "no two ranks are on one host";
  for (std::size_t rank = 1; rank < host_of_rank_.size(); ++rank)
    if (host_of_rank_[rank] < host_of_rank_[rank - 1])
      return formatted("ranks {} and {} are on one host, but rank {} between them is on another",
                       first(host_of_rank_[rank]), rank, rank - 1);
  return "";
}

Hosts Hosts::of_ranks(const std::vector<int>& ranks) const {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(of(rank));
  return Hosts(std::move(hosts));
}

}  // namespace muster::comm
