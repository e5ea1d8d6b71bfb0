#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_staging.h"
#include "comm/hierarchical/hosts.h"
#include "comm/pieces.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// What one operation needs: the ranks of the group on their hosts, and how they reach each other.
struct HostContext {
  Transport& between;   ///< hosts
  HostStaging& within;  ///< this rank's host
  const Hosts& hosts;
  TimePoint deadline;
  /// Where this rank reads the tensors of those of its host, by rank; empty if one of them is in private memory.
  std::vector<const std::byte*> mapped{};

  int rank() const { return between.rank(); }
  int host() const { return hosts.of(rank()); }
  bool owns(int local_rank) const { return hosts.owner(host(), local_rank) == rank(); }
  /// Until all ranks of this host are done with each other's memory.
  void end_reading() const;
};

/// Elements of a tensor for which one rank of each host is responsible: the owner of `local_rank`, see Hosts.
struct Part {
  Range range;
  int local_rank;
  int receiver;  ///< who alone gets their reduction; -1: all ranks
};

/// Parts that go through the staging of a host in one round, one after another.
using Chunk = std::vector<Part>;

/// Each local rank has its part of every chunk. No part is empty.
std::vector<Chunk> chunks_by_local_rank(const at::Tensor& tensor, const Hosts& hosts, int receiver);
/// Chunks of a tensor with a piece for each rank, which alone receives it. No part is empty.
std::vector<Chunk> chunks_of_pieces(const at::Tensor& tensor, const Hosts& hosts);

}  // namespace muster::comm
