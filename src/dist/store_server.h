#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

#include "muster/cluster/cluster.h"

namespace muster::dist {

/// The store at the cluster's address. Rank 0 runs it, unless somebody else does: on the launcher's socket, or on one of its
/// own at where_to_listen() its address. Groups of one process share the server.
/// Throws: what the store throws; std::runtime_error if rank 0 cannot listen.
c10::intrusive_ptr<c10d::Store> open_tcp_store(const Cluster& cluster, std::chrono::milliseconds timeout);

/// On the main rank: one warning if anybody but this host reaches the store, that says whom it lets in.
void say_who_may_join(const Cluster& cluster, bool has_secret);

}  // namespace muster::dist
