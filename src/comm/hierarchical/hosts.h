#pragma once

#include <string>
#include <vector>

namespace muster::comm {

/// On which host each rank of a group is. Hosts are numbered in the order of their first ranks. A plain value.
class Hosts {
 public:
  Hosts() = default;
  /// `host_of_rank`: equal for ranks on one host, different for ranks on different hosts.
  explicit Hosts(std::vector<int> host_of_rank);

  int count() const noexcept { return static_cast<int>(firsts_.size()); }
  int of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }
  int first(int host) const { return firsts_[static_cast<std::size_t>(host)]; }
  int size(int host) const { return sizes_[static_cast<std::size_t>(host)]; }
  int largest() const;

  /// The rank within its host.
  int local_rank(int rank) const { return rank - first(of(rank)); }
  /// The parts of a tensor are numbered by local rank, the same on each host. On each host one rank owns a part:
  /// the one with this local rank, or, on a host with fewer ranks, this number modulo size(host).
  int owner(int host, int local_rank) const { return first(host) + local_rank % size(host); }

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
