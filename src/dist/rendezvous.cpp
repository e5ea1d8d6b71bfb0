#include "muster/dist/rendezvous.h"

#include <stdlib.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dist/gloo_transport.h"
#include "dist/group.h"
#include "dist/plugged.h"
#include "dist/store_file.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/cluster/variables.h"

namespace muster::dist {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// The launcher hands its socket over once, and holds the port itself: the server that took the socket serves later groups of
/// this process, too, so it lives as long as the process.
void keep(StorePtr server) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<StorePtr>;
  std::lock_guard lock(mutex);
  kept.push_back(std::move(server));
}

StorePtr open_tcp_store(const Cluster& cluster, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(cluster.main_port);
  options.isServer = cluster.rank == 0 && !cluster.store_is_external;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // a second group of this process shares the server
  if (options.isServer && cluster.store_listen_fd >= 0) {
    options.masterListenFd = cluster.store_listen_fd;
    ::unsetenv(cluster::kStoreFd);
  }
  StorePtr store = c10::make_intrusive<c10d::TCPStore>(cluster.main_address, options);
  if (options.masterListenFd) keep(store);
  return store;
}

/// Where ranks meet, and what keeps that place; it must outlive the store.
struct Meeting {
  std::shared_ptr<void> keeps;
  StorePtr store;
};

Meeting open_file(const Cluster& cluster, std::chrono::milliseconds timeout) {
  auto file = std::make_shared<StoreFile>(cluster, timeout.count() / 1000.0);
  return {file, c10::make_intrusive<c10d::PrefixStore>(std::to_string(file->turn()), file->store())};
}

Meeting open_server(const Cluster& cluster, std::chrono::milliseconds timeout) {
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(cluster.store_prefix + "muster", open_tcp_store(cluster, timeout));
  // A process may connect more than once; the n-th time of each rank belong together.
  auto turn = store->add(formatted("connects/{}", cluster.rank), 1);
  return {nullptr, c10::make_intrusive<c10d::PrefixStore>(std::to_string(turn), store)};
}

Meeting open_store(const Cluster& cluster, std::chrono::milliseconds timeout) {
  bool is_file = cluster.rendezvous == RendezvousKind::file;
  std::string place = is_file ? cluster.store_path : cluster.main_address + ":" + std::to_string(cluster.main_port);
  try {
    auto meeting = is_file ? open_file(cluster, timeout) : open_server(cluster, timeout);
    meeting.store->setTimeout(timeout);
    return meeting;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    throw CommError("MU058", formatted("rank {} of {} could not reach the store at {} within {:.0f} s: {}. Is rank 0 running, "
                                    "and is the address right?", cluster.rank, cluster.world_size, place,
                                    timeout.count() / 1000.0, std::string(failure.what()).substr(0, 300)));
  }
}

std::string key_of(int rank) { return formatted("rank/{}", rank); }

/// Waits until every rank has left its mark.
void meet(const Cluster& cluster, c10d::Store& store, std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < cluster.world_size; ++rank) keys.push_back(key_of(rank));
  std::string missing, reason;
  try {
    store.set(key_of(cluster.rank), std::vector<uint8_t>{1});
    store.wait(keys, timeout);
    return;
  } catch (const std::exception& failure) {
    reason = failure.what();
  }
  try {
    for (int rank = 0; rank < cluster.world_size; ++rank)
      if (!store.check({key_of(rank)})) missing += formatted("{}{}", missing.empty() ? "" : ", ", rank);
  } catch (const std::exception&) {
    missing.clear();
  }
  if (missing.empty())
    throw CommError("MU058", formatted("rank {} lost the store while it waited for the other ranks: {}", cluster.rank,
                                    reason.substr(0, 300)));
  throw CommError("MU057", formatted("rank {} waited {:.0f} s for {} ranks to meet; missing: {}. Were they started, with the same "
                                  "address and world size?", cluster.rank, timeout.count() / 1000.0, cluster.world_size, missing));
}

GroupIdentity identity_of(const std::string& backend, const GroupOptions& options) {
  GroupIdentity identity;
  identity.backend = backend;
  identity.timeout = milliseconds(options.timeout_seconds);
  return identity;
}

Communicator plug_in(const BackendEntry& entry, const StorePtr& store, const Cluster& cluster, const GroupOptions& options,
                     std::shared_ptr<void> keeps) {
  GroupIdentity identity = identity_of(options.backend, options);
  identity.keeps = std::move(keeps);
  identity.device = entry.device;
  auto make = [store, entry, options](const std::string& name, int rank, int size) {
    return entry.make(c10::make_intrusive<c10d::PrefixStore>("backend/" + name, store), rank, size, options);
  };
  auto backend = make(identity.name, cluster.rank, cluster.world_size);
  return Communicator(std::make_shared<Group>(identity, make_plugged(std::move(backend), entry.device, make)));
}

void check_backend(const std::string& name, const Backends& more) {
  if (name == "gloo" || name == "fake" || more.contains(name)) return;
  std::string known = "gloo, fake";
  for (const auto& [other, entry] : more) known += ", " + other;
  throw ConfigError("MU059", formatted("there is no backend '{}'; known are {}", name, known));
}

}  // namespace

Communicator make_fake(int rank, int size) {
  GroupIdentity identity;
  identity.backend = "fake";
  identity.starts_inline = true;
  return Communicator(std::make_shared<Group>(identity, make_fake_collectives(rank, size)));
}

Communicator adopt(c10::intrusive_ptr<c10d::Backend> backend, const std::string& name, c10::DeviceType device,
                   const GroupOptions& options) {
  GroupIdentity identity = identity_of(backend->getBackendName(), options);
  identity.device = device;
  identity.name = name;
  return Communicator(std::make_shared<Group>(identity, make_plugged(std::move(backend), device, nullptr)));
}

Communicator connect(const Cluster& cluster, const GroupOptions& options, const Backends& more) {
  check_backend(options.backend, more);
  if (cluster.world_size == 1) return Communicator();
  if (options.backend == "fake") return make_fake(cluster.rank, cluster.world_size);
  auto timeout = milliseconds(options.rendezvous_timeout_seconds);
  auto [cleanup, store] = open_store(cluster, timeout);
  meet(cluster, *store, timeout);
  if (auto entry = more.find(options.backend); entry != more.end()) return plug_in(entry->second, store, cluster, options, std::move(cleanup));
  GroupIdentity identity = identity_of("gloo", options);
  identity.keeps = std::move(cleanup);
  GlooSetup setup{options.interface, cluster.nodes == 1, timeout, store};
  auto transport = make_gloo_transport(setup, identity.name, cluster.rank, cluster.world_size);
  return Communicator(std::make_shared<Group>(identity, make_pairwise(std::move(transport))));
}

}  // namespace muster::dist
