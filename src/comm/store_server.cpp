#include "comm/store_server.h"

#include <stdlib.h>

#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/log.h"
#include "cluster/listening_socket.h"
#include "cluster/variables.h"
#include "comm/bounded_store.h"
#include "comm/in_time.h"
#include "comm/store_probe.h"
#include "comm/warning_timeout.h"
#include "muster/base/error.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The servers that this process runs, by port. They are process-wide, like ports, and live as long as the process: the
/// launcher hands its socket over once, and a rank may start another rendezvous before all ranks have left the last
/// one.
struct Servers {
  struct Running {
    StorePtr store;
    std::string address;  ///< address on which the server listens; empty: all addresses
    /// The address at which this process finds the server, whatever the job's address means here.
    std::string for_clients() const { return address.empty() ? "localhost" : address; }
  };
  std::mutex mutex;
  std::map<int, Running> running;
};

Servers& servers() {
  static auto& all = *new Servers;
  return all;
}

int listen_at(const ClusterEnvironment& cluster) {
  try {
    return cluster::ListeningSocket(cluster.main_port, cluster::where_to_listen(cluster.main_address)).release();
  } catch (const LaunchError& failure) {
    throw std::runtime_error(failure.what());
  }
}

StorePtr run_server(const ClusterEnvironment& cluster, c10d::TCPStoreOptions options) {
  auto& all = servers();
  std::lock_guard lock(all.mutex);
  if (auto found = all.running.find(cluster.main_port); found != all.running.end())
    return c10::make_intrusive<c10d::TCPStore>(found->second.for_clients(), options);
  const bool is_launchers = cluster.store_listen_fd >= 0;
  if (is_launchers) ::unsetenv(cluster::kStoreFd);  // NOLINT(concurrency-mt-unsafe)
  options.masterListenFd = is_launchers ? cluster.store_listen_fd : listen_at(cluster);
  Servers::Running running{nullptr, cluster::bound_address(*options.masterListenFd)};
  running.store = c10::make_intrusive<c10d::TCPStore>(running.for_clients(), options);
  return all.running.insert_or_assign(cluster.main_port, std::move(running)).first->second.store;
}

/// The address on which the store of this job listens. c10d's own servers listen on all addresses.
std::string address_of_store(const ClusterEnvironment& cluster) {
  auto& all = servers();
  std::lock_guard lock(all.mutex);
  auto found = all.running.find(cluster.main_port);
  return cluster.store_is_external || found == all.running.end() ? "" : found->second.address;
}

/// Whether this rank logs for all ranks of its node that wait for the server.
bool speaks_for_node(const ClusterEnvironment& cluster) {
  const bool serves_here = cluster.node_rank == 0 && !cluster.store_is_external;
  return cluster.local_rank == (serves_here ? 1 : 0);
}

StorePtr join_server(const ClusterEnvironment& cluster, const c10d::TCPStoreOptions& options,
                     const WarningTimeout& whole) {
  StoreProbe probe(cluster.main_address, cluster.main_port, options.timeout);
  std::optional<Reminder> reminder;
  if (speaks_for_node(cluster))
    reminder.emplace([&](double seconds) {
      const auto found = probe.found();
      return formatted("has waited {:.0f} s for the store at {}:{}, which {} opens{}", seconds, cluster.main_address,
                       cluster.main_port, cluster.store_is_external ? "the launcher" : "rank 0",
                       found.empty() ? "" : "; " + found);
    });
  const auto address = probe.wait();
  return call_in_time(whole.left() + kLateAnswer,
                      [=] { return StorePtr(c10::make_intrusive<c10d::TCPStore>(address, options)); });
}

}  // namespace

StorePtr open_tcp_store(const ClusterEnvironment& cluster, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(cluster.main_port);
  options.isServer = cluster.rank == 0 && !cluster.store_is_external;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // a second group of this process shares the server
  const auto place = log::str(cluster.main_address, ":", cluster.main_port);
  const WarningTimeout whole(timeout);
  auto store = c10::make_intrusive<BoundedStore>(
      options.isServer ? run_server(cluster, options) : join_server(cluster, options, whole), place);
  store->setTimeout(whole.left());
  return store;
}

void say_who_may_join(const ClusterEnvironment& cluster, bool has_secret) {
  if (!cluster.is_main()) return;
  if (cluster.store_is_external && (has_secret || cluster::listens_on_loopback_alone(cluster.main_port))) return;
  const auto address = address_of_store(cluster);
  if (cluster::is_loopback(address) || (has_secret && !address.empty())) return;
  const auto where = log::str("the store of this job listens on port ", cluster.main_port, " of ",
                              address.empty() ? "all addresses of its host" : address);
  if (has_secret)
    return log::warning(where, ", since '", cluster.main_address,
                        "' is no address of this host that others reach; only ranks with the "
                        "job's secret are let in");
  log::warning(where,
               ", and the job has no secret: whoever reaches it can change what the ranks tell each other there, or "
               "join as a rank. Give every rank "
               "the same MUSTER_SECRET, or MUSTER_SECRET_FILE (see docs/concepts/security.md)");
}

}  // namespace muster::comm
