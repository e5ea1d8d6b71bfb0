#pragma once

#include <string>
#include <vector>

namespace muster::comm {

/// The host of each rank of a group. Hosts are numbered in the order of their first ranks. A plain value.
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

  /// The rank's index within its host.
  int local_rank(int rank) const { return rank - first(of(rank)); }
  /// Parts of a tensor are numbered by local rank, on all hosts alike. On each host one rank owns a part: the one with
  /// this local rank, or, on a host with fewer ranks, the one with this number modulo size(host).
  int owner(int host, int local_rank) const { return first(host) + local_rank % size(host); }

  /// Why operations cannot go first through the hosts' memory and then between hosts; empty if they can.
  std::string obstacle() const;
  /// The hosts of a group of some of the ranks.
  Hosts of_ranks(const std::vector<int>& ranks) const;

 private:
  std::vector<int> host_of_rank_;
  std::vector<int> firsts_;
  std::vector<int> sizes_;
};

}  // namespace muster::comm
