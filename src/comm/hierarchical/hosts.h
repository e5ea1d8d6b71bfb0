#pragma once

#include <type_traits>

#include <ATen/core/Tensor.h>

#include "comm/pieces.h"
#include "comm/shared_memory/areas.h"
#include "comm/wait_policy.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The host of each rank of a group. Hosts are numbered in the order of their first ranks. A plain value.
class Hosts {
 public:
  Hosts() = default;
  /// `host_of_rank`: equal for ranks on one host, different for ranks on different hosts.
  explicit Hosts(std::vector<int> host_of_rank);

  int ranks() const noexcept { return static_cast<int>(host_of_rank_.size()); }
  int count() const noexcept { return static_cast<int>(firsts_.size()); }
  int of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }
  int first(int host) const { return firsts_[static_cast<std::size_t>(host)]; }
  int size(int host) const { return sizes_[static_cast<std::size_t>(host)]; }
  int largest() const { return *std::max_element(sizes_.begin(), sizes_.end()); }

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

/// Exchanges parts of tensors between the ranks of one host, in rounds, through one staging buffer per rank. Ranks are
/// numbered as in the group. Thread safety: one thread at a time, except abort().
class HostStaging {
 public:
  /// Size of one buffer in bytes.
  static constexpr std::size_t kBytes = AreaLayout::kStagingBytes;

  HostStaging(std::unique_ptr<SharedAreas> areas, int first_rank) : areas_(std::move(areas)), first_(first_rank) {
    areas_->set_first_global_rank(first_rank);
  }

  int first() const noexcept { return first_; }
  int size() const noexcept { return areas_->size(); }

  /// `fill` writes to this rank's buffer, then `use` reads the buffers of the others by of(). A rank that is alone on
  /// its host fills nothing. Throws: TransportFailure; CommError (MU402).
  /// Collective on the host.
  void round(TimePoint deadline, const std::function<void(std::byte*)>& fill, const std::function<void()>& use);
  /// The buffer of that rank, filled in this round. Throws: TransportFailure.
  const std::byte* of(int rank, TimePoint deadline) {
    wait(rank, deadline);
    return areas_->staging(rank - first_, rounds_ - 1);
  }

  /// Starts a round without buffers, for tensors in memory that ranks share. Throws: TransportFailure. Collective on
  /// the host.
  void arrive() {
    areas_->control(areas_->rank()).filled.store(++rounds_, std::memory_order_release);
    in_ranks_of_group([&] { areas_->notify_all(); });
  }
  /// Waits until that rank has reached this round, too. Throws: TransportFailure.
  void wait(int rank, TimePoint deadline);
  /// SharedAreas::allocate_buffer() with one part per rank of a group of `ranks`; parts of other hosts are null.
  std::shared_ptr<SharedBuffer> allocate_buffer(std::size_t bytes, uint64_t number, int ranks, TimePoint deadline);

  void abort(const std::string& cause) noexcept { areas_->abort(cause); }
  void close() noexcept { areas_->close(); }
  /// Makes the staging of some ranks of this host. Only members call it. Throws: CommError (MU401). Collective.
  std::unique_ptr<SharedAreas> split(const std::vector<int>& ranks, const std::string& name) {
    std::vector<int> on_host;
    for (const int rank : ranks) on_host.push_back(rank - first_);
    return areas_->split(on_host, name);
  }

 private:
  /// Calls f; failures of the areas then name the rank as numbered in the group.
  template <class F>
  std::invoke_result_t<F> in_ranks_of_group(F f) {
    try {
      return f();
    } catch (TransportFailure failure) {
      if (failure.peer >= 0) failure.peer += first_;
      throw failure;
    }
  }

  const std::unique_ptr<SharedAreas> areas_;
  const int first_;
  uint64_t rounds_ = 0;
};

/// What one operation needs: the hosts of the group's ranks, and how the ranks reach each other.
struct HostContext {
  Transport& between;   ///< transport between hosts
  HostStaging& within;  ///< staging within this rank's host
  const Hosts& hosts;
  TimePoint deadline;
  /// Addresses at which this rank reads the tensors of its host's ranks, by rank; empty if one of them is in private
  /// memory.
  std::vector<const std::byte*> mapped{};

  int rank() const { return between.rank(); }
  int host() const { return hosts.of(rank()); }
  bool owns(int local_rank) const { return hosts.owner(host(), local_rank) == rank(); }
  /// Waits until all ranks of this host have finished with each other's memory.
  void end_reading() const;
};

/// Elements of a tensor for which one rank of each host is responsible: the owner of `local_rank`, see Hosts.
struct Part {
  Range range;
  int local_rank;
  int receiver;  ///< only rank that gets the reduction of this part; -1: all ranks
};

/// Parts that go through the staging of a host in one round, one after another.
using Chunk = std::vector<Part>;

/// Chunks in which each local rank has one part. No part is empty.
std::vector<Chunk> chunks_by_local_rank(const at::Tensor& tensor, const Hosts& hosts, int receiver);
/// Chunks of a tensor that has a piece for each rank; a piece goes only to its rank. No part is empty.
std::vector<Chunk> chunks_of_pieces(const at::Tensor& tensor, const Hosts& hosts);

}  // namespace muster::comm
