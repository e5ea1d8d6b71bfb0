#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "muster/cluster/cluster.h"

namespace muster::comm {

/// The store at the cluster's address. Rank 0 runs its server, unless another process does: on the launcher's socket,
/// or on its own socket at the address that where_to_listen() gives. Groups of one process share the server. Each call
/// of the store is bounded (BoundedStore), at first by what is left of `timeout`.
/// Throws: std::runtime_error if rank 0 cannot listen, or if no store answers within `timeout`; it says what was found
/// at the address instead.
c10::intrusive_ptr<c10d::Store> open_tcp_store(const ClusterEnvironment& cluster, std::chrono::milliseconds timeout);

/// On the main rank: logs one warning if other hosts can reach the store. The warning says which processes are
/// admitted.
void say_who_may_join(const ClusterEnvironment& cluster, bool has_secret);

}  // namespace muster::comm
