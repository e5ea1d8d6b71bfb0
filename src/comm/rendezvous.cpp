#include "muster/comm/rendezvous.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/log.h"
#include "base/text.h"
#include "cluster/report.h"
#include "cluster/secret.h"
#include "comm/custom_backend.h"
#include "comm/custom_transport.h"
#include "comm/error_text.h"
#include "comm/gloo_transport.h"
#include "comm/group.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/shared_memory/areas.h"
#include "comm/shared_memory/shared_collectives.h"
#include "comm/stores.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "wait_policy.h"

namespace muster::comm {
namespace {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The store through which ranks find each other, and what it depends on: `keeps` must outlive it.
struct OpenStore {
  std::shared_ptr<void> keeps;
  StorePtr store;
};

/// Wraps the store so that values are signed if the job has a secret.
StorePtr with_secret(StorePtr store, const cluster::Secret& secret) {
  if (!secret.is_given()) return store;
  return c10::make_intrusive<SignedStore>(std::move(store), secret);
}

OpenStore open_file(const ClusterEnvironment& cluster, const cluster::Secret& secret,
                    std::chrono::milliseconds timeout) {
  auto file = std::make_shared<StoreFile>(cluster, timeout.count() / 1000.0);
  return {file,
          c10::make_intrusive<c10d::PrefixStore>(std::to_string(file->turn()), with_secret(file->store(), secret))};
}

OpenStore open_server(const ClusterEnvironment& cluster, const cluster::Secret& secret,
                      std::chrono::milliseconds timeout) {
  auto whole = with_secret(open_tcp_store(cluster, timeout), secret);
  StorePtr store = c10::make_intrusive<c10d::PrefixStore>(cluster.store_prefix + "muster", std::move(whole));
  // A process may connect more than once; the n-th connections of all ranks belong together.
  auto turn = store->add(formatted("connects/{}", cluster.rank), 1);
  if (turn == 1) say_who_may_join(cluster, secret.is_given());
  return {nullptr, c10::make_intrusive<c10d::PrefixStore>(std::to_string(turn), store)};
}

OpenStore open_store(const ClusterEnvironment& cluster, const cluster::Secret& secret,
                     std::chrono::milliseconds timeout) {
  bool is_file = cluster.rendezvous == RendezvousKind::file;
  std::string place = is_file ? cluster.store_path : cluster.main_address + ":" + std::to_string(cluster.main_port);
  try {
    auto opened = is_file ? open_file(cluster, secret, timeout) : open_server(cluster, secret, timeout);
    opened.store->setTimeout(timeout);
    return opened;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    throw CommError(
        "MU058",
        formatted("rank {} of {} could not reach the store at {} within {:.0f} s: {}. Is rank 0 running, "
                  "and is the address right?",
                  cluster.rank, cluster.world_size, place, timeout.count() / 1000.0, short_error_text(failure.what())));
  }
}

std::string key_of(int rank) { return formatted("rank/{}", rank); }

std::vector<std::string> keys_of_all(const ClusterEnvironment& cluster) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < cluster.world_size; ++rank) keys.push_back(key_of(rank));
  return keys;
}

/// The ranks that have not set their keys yet. Throws if the store is gone.
std::vector<int> missing_ranks(const ClusterEnvironment& cluster, c10d::Store& store) {
  std::vector<int> missing;
  for (int rank = 0; rank < cluster.world_size; ++rank)
    if (!store.check({key_of(rank)})) missing.push_back(rank);
  return missing;
}

/// Logs the missing ranks. Only the first rank that is present logs, for all of them.
void log_missing(const ClusterEnvironment& cluster, const std::vector<int>& missing,
                 const WarningTimeout& warning_timeout) {
  int first_here = 0;
  while (std::binary_search(missing.begin(), missing.end(), first_here)) ++first_here;
  if (cluster.rank == first_here)
    log::warning(formatted("has waited {:.0f} s for {} ranks to rendezvous; missing: {}",
                           warning_timeout.waited_seconds(), cluster.world_size, joined(missing)));
}

[[noreturn]] void lost_store(const ClusterEnvironment& cluster, const cluster::Report& report,
                             const std::string& reason) {
  report.lost(0, "MU058");
  throw CommError("MU058", formatted("rank {} lost the store while it waited for the other ranks: {}", cluster.rank,
                                     short_error_text(reason)));
}

/// The value of a rank's key: the device backend over which it exchanges tensors.
std::vector<uint8_t> mark_of(const GroupOptions& options) {
  const auto& entry = options.device_backend;
  const auto text = entry ? formatted("{} for {}", entry->name, c10::DeviceTypeName(entry->device, true)) : "none";
  return {text.begin(), text.end()};
}

/// Waits until every rank has set its key. Meanwhile the log names the missing ranks.
void wait_for_ranks(const ClusterEnvironment& cluster, c10d::Store& store, const GroupOptions& options,
                    WarningTimeout& warning_timeout, const cluster::Report& report) {
  const auto keys = keys_of_all(cluster);
  for (bool marked = false;;) {
    std::string reason;
    store.setTimeout(warning_timeout.left());  // for a server that stops answering
    try {
      if (!std::exchange(marked, true)) store.set(key_of(cluster.rank), mark_of(options));
      return store.wait(keys, warning_timeout.next());
    } catch (const std::exception& failure) {
      reason = failure.what();
    }
    std::vector<int> missing;
    try {
      missing = missing_ranks(cluster, store);
    } catch (const std::exception&) {
      lost_store(cluster, report, reason);
    }
    if (missing.empty()) return;
    if (!warning_timeout.over()) {
      log_missing(cluster, missing, warning_timeout);
      continue;
    }
    report.lost(missing.front(), "MU057");
    throw CommError(
        "MU057",
        formatted("rank {} waited {:.0f} s for {} ranks to rendezvous; missing: {}. Were they started, with the "
                  "same address and world size?",
                  cluster.rank, options.rendezvous_timeout.count() / 1000.0, cluster.world_size, joined(missing)));
  }
}

/// Reads the value that each rank has set. The store's host may be gone by now.
std::vector<std::vector<uint8_t>> read_marks(const ClusterEnvironment& cluster, c10d::Store& store,
                                             const cluster::Report& report) {
  const auto keys = keys_of_all(cluster);
  std::vector<std::vector<uint8_t>> marks;
  try {
    if (cluster.rendezvous == RendezvousKind::tcp) return store.multiGet(keys);
    for (const auto& key : keys) marks.push_back(store.get(key));
  } catch (const Error&) {  // a wrong signature
    throw;
  } catch (const std::exception& failure) {
    lost_store(cluster, report, failure.what());
  }
  return marks;
}

/// Checks that all ranks have equal device backends; otherwise they would wait for each other until the timeout.
void check_device_backends(const ClusterEnvironment& cluster, const std::vector<std::vector<uint8_t>>& marks) {
  const auto& own = marks.at(static_cast<std::size_t>(cluster.rank));
  for (std::size_t rank = 0; rank < marks.size(); ++rank)
    if (marks[rank] != own)
      throw ConfigError(
          "MU558",
          formatted("rank {} has the backend {} of a device, and rank {} the backend {}: give all ranks the same "
                    "device_backend, devices of one type, and on every node the object of that backend, if it has one",
                    cluster.rank, std::string(own.begin(), own.end()), rank,
                    std::string(marks[rank].begin(), marks[rank].end())));
}

/// Checks that the ranks that set the keys have the job's secret, or that they have none if the job has none.
void check_marks(const ClusterEnvironment& cluster, c10d::Store& store, const cluster::Secret& secret,
                 const cluster::Report& report) {
  const auto marks = read_marks(cluster, store, report);
  for (int rank = 0; rank < cluster.world_size && !secret.is_given(); ++rank)
    if (is_signed(marks[rank]))
      throw CommError(
          "MU067",
          formatted("rank {} of this job has a secret, but rank {} has none. Give all ranks the same MUSTER_SECRET, or "
                    "MUSTER_SECRET_FILE",
                    rank, cluster.rank));
  check_device_backends(cluster, marks);
}

CustomBackend with_store(const BackendEntry& entry, const StorePtr& store, const GroupOptions& options) {
  const auto kind = c10::DeviceTypeName(entry.device, /*lower_case=*/true);  // a group may have one per kind
  return {entry, options, c10::make_intrusive<c10d::PrefixStore>("backend for " + kind, store)};
}

SharedAttempt attempt_to_share(const ClusterEnvironment& cluster, const StorePtr& store, const GroupOptions& options) {
  try {
    return share_memory(cluster, store, options.rendezvous_timeout, options.backend != "shm");
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    throw CommError("MU058", formatted("rank {} lost the store while ranks agreed on sharing memory: {}. Look for the "
                                       "first failure in the output of the other ranks.",
                                       cluster.rank, short_error_text(failure.what())));
  }
}

/// Returns no areas if the ranks cannot share memory and the backend is not fixed; all ranks get one answer.
SharedAttempt try_shared_memory(const ClusterEnvironment& cluster, const StorePtr& store, const GroupOptions& options,
                                GroupIdentity& identity) {
  auto attempt = attempt_to_share(cluster, store, options);
  if (!attempt.areas && options.backend != "auto")
    throw CommError("MU400",
                    formatted("the ranks cannot share memory, which the backend {} wants: {}. Take the backend auto, "
                              "or gloo",
                              options.backend, attempt.reason));
  const int hosts = attempt.areas ? Hosts(attempt.hosts).count() : 0;
  identity.backend = hosts == 0 ? "gloo" : hosts == 1 ? "shm" : "hierarchical";
  if (identity.backend == options.backend) return attempt;
  identity.backend_reason = hosts == 0   ? "no shared memory: " + attempt.reason
                            : hosts == 1 ? "all ranks are on one host"
                                         : formatted("shared memory on each of {} hosts, gloo between them", hosts);
  return attempt;
}

struct HostSetup {
  const ClusterEnvironment& cluster;
  GroupOptions options;
  StorePtr store;
  cluster::Secret secret;
};

std::unique_ptr<Collectives> make_over_mpi(const HostSetup& setup, MpiSetup mpi, GroupIdentity& identity) {
  mpi.connect_timeout = setup.options.rendezvous_timeout;
  mpi.timeout = setup.options.timeout;
  mpi.secret = setup.secret;
  auto link = connect_by_mpi(mpi, identity.name, setup.cluster.rank, setup.cluster.world_size);
  identity.backend = "mpi";
  identity.backend_reason = link.note;
  identity.starts_inline = link.in_callers_thread;
  return std::move(link.collectives);
}

/// What carries tensors in host memory, if it is not one of Muster's: a c10d::Backend or a transport.
struct CustomHost {
  const BackendEntry* backend = nullptr;  ///< the entry that connect() was given; null: there is none
  FoundTransport transport{};             ///< `make` is null: there is none
};

std::unique_ptr<Collectives> make_custom_collectives(const HostSetup& setup, const CustomHost& custom,
                                                     GroupIdentity& identity) {
  const auto& options = setup.options;
  const int rank = setup.cluster.rank, size = setup.cluster.world_size;
  identity.backend = options.backend;
  if (custom.backend) {
    auto of_entry = options;
    of_entry.backend = "auto";  // a factory may connect() other groups with these options, which know no entry
    return make_over_backend(with_store(*custom.backend, setup.store, of_entry), identity.name, rank, size);
  }
  identity.backend_reason = "the transport " + custom.transport.place;
  auto store = c10::make_intrusive<c10d::PrefixStore>("transport", setup.store);
  return make_over_custom({options.backend, options.rendezvous_timeout, setup.secret}, identity.name, rank, size,
                          [&] { return custom.transport.make(store, rank, size, options); });
}

/// Makes the collectives of "gloo", "shm", "hierarchical", "auto" or MPI; the identity then names the backend.
std::unique_ptr<Collectives> make_host_collectives(const HostSetup& setup, GroupIdentity& identity) {
  const auto& [cluster, options, store, secret] = setup;
  if (auto mpi = mpi_setup_of(options.backend)) return make_over_mpi(setup, std::move(*mpi), identity);
  SharedAttempt shared;
  if (options.backend != "gloo") shared = try_shared_memory(cluster, store, options, identity);
  if (identity.backend == "shm") return std::make_unique<SharedCollectives>(std::move(shared.areas));
  const auto timeout = options.rendezvous_timeout;
  GlooSetup gloo{options.interface, cluster.nodes == 1, timeout, store, secret};
  auto transport = make_gloo_transport(gloo, identity.name, cluster.rank, cluster.world_size);
  if (!shared.areas) return make_pairwise(std::move(transport));
  return std::make_unique<Hierarchical>(std::move(transport), std::move(shared.areas), Hosts(shared.hosts),
                                        options.two_level_sums, timeout);
}

StoreServer server_of(const ClusterEnvironment& cluster) {
  if (cluster.rendezvous == RendezvousKind::file) return {"which is the file " + cluster.store_path};
  if (cluster.store_is_external) return {"which the launcher holds"};
  return {"which rank 0 holds", 0};
}

std::optional<at::Device> current_device(c10::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return std::nullopt;
  return c10::impl::VirtualGuardImpl(type).getDevice();
}

/// Also puts what all groups of this device share into the identity.
std::unique_ptr<DeviceCollectives> make_device_collectives(const BackendEntry& entry, const HostSetup& setup,
                                                           GroupIdentity& identity) {
  const int rank = setup.cluster.rank, size = setup.cluster.world_size;
  auto custom = with_store(entry, setup.store, setup.options);
  auto backend = custom.make(identity.name, rank, size);
  identity.flight_recorder = std::make_shared<FlightRecorder>();
  auto watched = c10::make_intrusive<c10d::PrefixStore>("device watch", setup.store->clone());
  identity.watch = std::make_shared<DeviceWatchdog>(
      DeviceWatchdog::Setup{std::move(watched), server_of(setup.cluster), rank, size, identity.flight_recorder},
      current_device(entry.device));
  return std::make_unique<DeviceCollectives>(std::move(backend), std::move(custom));
}

/// Returns nothing for one of Muster's own backends. Throws: ConfigError (MU059) for a name that nobody has.
CustomHost find_custom(const std::string& name, const Backends& more) {
  if (auto given = more.find(name); given != more.end()) {
    if (given->second.device == c10::DeviceType::CPU) return {.backend = &given->second};
    throw ConfigError("MU059", formatted("the backend '{}' that connect() was given is for tensors of {}, and backend "
                                         "names one for tensors in host memory: give it as device_backend",
                                         name, c10::DeviceTypeName(given->second.device, /*lower_case=*/true)));
  }
  std::vector<std::string> known{"auto", "gloo", "shm", "hierarchical", "mpi", "fake"};
  if (std::find(known.begin(), known.end(), name) != known.end() || mpi_setup_of(name)) return {};
  if (auto found = find_transport(name); found.make) return {.transport = std::move(found)};
  if (name == "mpi_collectives")
    throw ConfigError("MU059", "the backend 'mpi_collectives' was removed, since its sums had other bits: take 'mpi'");
  for (const auto& [other, entry] : more) known.push_back(other);
  throw ConfigError("MU059", formatted("there is no backend '{}'{}; for a transport neither the program nor an object "
                                       "libmuster_{}.so has muster_transport_{}",
                                       name, known_ones(known), name, name));
}

}  // namespace

Communicator make_fake(int rank, int size) {
  GroupIdentity identity{.backend = "fake", .starts_inline = true};
  return Communicator(std::make_shared<Group>(identity, make_local(rank, size)));
}

Communicator connect(const ClusterEnvironment& cluster, const GroupOptions& options, const Backends& more) {
  const auto custom = find_custom(options.backend, more);
  check_timeouts(options);
  if (options.device_backend) check_device_backend(*options.device_backend);
  if (cluster.world_size == 1) return Communicator();
  if (options.backend == "fake") return make_fake(cluster.rank, cluster.world_size);
  const auto timeout = options.rendezvous_timeout;
  const auto report = cluster::Report::open(cluster.report_fd);
  report.start();
  const auto secret = cluster::read_secret(Environment::of_process());
  WarningTimeout rendezvous(timeout);  // one timeout to find the store, and the ranks there
  auto [cleanup, store] = open_store(cluster, secret, timeout);
  wait_for_ranks(cluster, *store, options, rendezvous, report);
  check_marks(cluster, *store, secret, report);
  store->setTimeout(timeout);
  GroupIdentity identity{.backend = "gloo", .keeps = std::move(cleanup), .report = report, .timeout = options.timeout};
  const HostSetup setup{cluster, options, store, secret};
  auto host_collectives = custom.backend || custom.transport.make ? make_custom_collectives(setup, custom, identity)
                                                                  : make_host_collectives(setup, identity);
  std::unique_ptr<DeviceCollectives> device_collectives;
  if (options.device_backend) device_collectives = make_device_collectives(*options.device_backend, setup, identity);
  return Communicator(
      std::make_shared<Group>(std::move(identity), std::move(host_collectives), std::move(device_collectives)));
}

}  // namespace muster::comm
