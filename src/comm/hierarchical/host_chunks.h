#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_staging.h"
#include "comm/hierarchical/hosts.h"
#include "comm/pieces.h"
#include "muster/comm/transport.h"

namespace muster::comm {

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
