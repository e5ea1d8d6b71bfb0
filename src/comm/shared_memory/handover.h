#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/shared_memory/areas.h"
#include "muster/cluster/cluster.h"

namespace muster::comm {

/// The areas of a group of processes, or why they cannot share memory: the same words on every rank.
struct SharedAttempt {
  std::unique_ptr<SharedAreas> areas;
  std::string reason;
};

/// Tries to share memory between all ranks of the job; they agree on the result through the store.
/// Collective. Throws: what the store throws.
SharedAttempt share_memory(const ClusterEnvironment& cluster, const c10::intrusive_ptr<c10d::Store>& store,
                           std::chrono::milliseconds timeout);

}  // namespace muster::comm
