#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/shared_memory/areas.h"
#include "muster/cluster/cluster.h"

namespace muster::comm {

/// The areas of the ranks of this rank's host, or why they cannot share memory. Every rank gets one text.
struct SharedAttempt {
  std::unique_ptr<SharedAreas> areas;
  std::string reason;
  std::vector<int> hosts{};  ///< host numbers by rank, equal for ranks of one host
};

/// Tries to share memory between the ranks of each host of the job. All ranks agree on the result through the store.
/// Ranks on several hosts share memory only if `several_hosts` is set and their Hosts have no obstacle.
/// Collective. Throws: what the store throws.
SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout, bool several_hosts);

}  // namespace muster::comm
