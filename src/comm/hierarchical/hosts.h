#pragma once

#include <string>
#include <vector>

namespace muster::comm {

/// On which host each rank of a group is. Hosts are numbered in the order of their first ranks. A plain value.
class Hosts {
 public:
  Hosts() = default;
  /// `host_of_rank` has equal numbers for ranks of one host, and others for those of others.
  explicit Hosts(std::vector<int> host_of_rank);

  int count() const noexcept { return static_cast<int>(firsts_.size()); }
  int of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }
  int first(int host) const { return firsts_[static_cast<std::size_t>(host)]; }
  int size(int host) const { return sizes_[static_cast<std::size_t>(host)]; }
  int largest() const;

  /// What ranks do for their host is divided by columns, of which each host has an owner: the rank with this local
  /// rank, where hosts have equally many ranks; where a host has fewer, its ranks own several.
  int column(int rank) const { return rank - first(of(rank)); }
  int owner(int host, int column) const { return first(host) + column % size(host); }

  /// Why operations cannot go by the hosts' memory first, and then between hosts; empty if they can.
  std::string obstacle() const;
  /// Those of a group of some of the ranks.
  Hosts of_ranks(const std::vector<int>& ranks) const;

 private:
  std::vector<int> host_of_rank_;
  std::vector<int> firsts_;
  std::vector<int> sizes_;
};

}  // namespace muster::comm
