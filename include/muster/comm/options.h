#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace muster {

namespace comm {
using TimePoint = std::chrono::steady_clock::time_point;
struct BackendEntry;
}  // namespace comm

/// How the ranks of a job form a group.
struct GroupOptions {
  /// "gloo"; "shm", shared memory, for ranks of one host; "hierarchical", shared memory on each host and gloo between
  /// hosts; "auto", the first of shm, hierarchical and gloo that is possible; "mpi", point-to-point messages of MPI,
  /// which has started the ranks; or the name of a custom transport, or of a factory given to connect().
  std::string backend = "auto";
  /// An additional backend for tensors of a device; null: they are staged through host memory.
  std::shared_ptr<const comm::BackendEntry> device_backend = {};
  std::string interface = "";  ///< network interface; empty: GLOO_SOCKET_IFNAME, or chosen by the
                               ///< addresses
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(5);  ///< wait for the other ranks to appear
  std::chrono::milliseconds timeout = std::chrono::minutes(10);            ///< longest duration of one operation
  bool two_level_sums = false;  ///< "hierarchical" adds up on each host first, and then the hosts' sums
};

}  // namespace muster
