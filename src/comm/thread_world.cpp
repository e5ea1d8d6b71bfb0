#include "comm/thread_world.h"

#include <memory>
#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm/group.h"
#include "comm/hierarchical/hierarchical.h"
#include "comm/shared_memory/shared_collectives.h"
#include "comm/thread_hubs.h"
#include "comm/wait_policy.h"

namespace muster::comm {
namespace {

using Join = std::function<std::unique_ptr<Collectives>(int rank)>;

struct Rank {
  int rank;
  int size;
};

std::exception_ptr run_rank(const Join& join, const GroupIdentity& identity, Rank place, const CustomBackend& backend,
                            const std::function<void(Communicator)>& body) {
  try {
    auto host_collectives = identity.starts_inline ? make_solo() : join(place.rank);
    std::unique_ptr<DeviceCollectives> device_collectives;
    if (backend.entry.make && place.size > 1)
      device_collectives =
          std::make_unique<DeviceCollectives>(backend.make(identity.name, place.rank, place.size), backend);
    body(Communicator(std::make_shared<Group>(identity, std::move(host_collectives), std::move(device_collectives))));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

CustomBackend device_backend_of(const ThreadWorldOptions& options) {
  if (!options.device_backend) return {};
  return {*options.device_backend,
          {.timeout = options.timeout},
          [whole = c10::make_intrusive<c10d::HashStore>()](const std::string& name) {
            return c10::make_intrusive<c10d::PrefixStore>(name, whole);
          }};
}

template <class Hub>
std::shared_ptr<Hub> new_hub(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  auto hub = std::make_shared<Hub>(size, identity.waiting);
  if (options.kill_rank >= 0) hub->kill(options.kill_rank, options.kill_step);
  return hub;
}

/// Makes one hub for messages between all ranks, and one hub per host for its shared memory.
Join hierarchical_join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  std::vector<int> host_of_rank;
  for (std::size_t host = 0; host < options.hosts.size(); ++host)
    host_of_rank.insert(host_of_rank.end(), static_cast<std::size_t>(options.hosts[host]), static_cast<int>(host));
  const Hosts hosts(host_of_rank);
  std::vector<std::shared_ptr<ThreadAreasHub>> memory;
  for (int host = 0; host < hosts.count(); ++host) {
    memory.push_back(std::make_shared<ThreadAreasHub>(hosts.size(host), identity.waiting));
    if (options.kill_rank >= 0 && hosts.of(options.kill_rank) == host)
      memory.back()->kill(options.kill_rank - hosts.first(host), options.kill_step);
  }
  return [=, hub = new_hub<ThreadHub>(size, identity, options)](int rank) {
    const int host = hosts.of(rank);
    return std::make_unique<Hierarchical>(hub->join(hub, rank),
                                          ThreadAreasHub::join(memory[host], rank - hosts.first(host)), hosts,
                                          options.two_level_sums, options.timeout);
  };
}

Join join_of(int size, const GroupIdentity& identity, const ThreadWorldOptions& options) {
  if (!options.hosts.empty()) return hierarchical_join_of(size, identity, options);
  if (options.shared_memory)
    return [hub = new_hub<ThreadAreasHub>(size, identity, options)](int rank) {
      return std::make_unique<SharedCollectives>(ThreadAreasHub::join(hub, rank));
    };
  return [hub = new_hub<ThreadHub>(size, identity, options)](int rank) { return make_pairwise(hub->join(hub, rank)); };
}

}  // namespace

std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body) {
  auto schedule = options.seed ? std::make_shared<SeededScheduler>(options.seed) : nullptr;
  GroupIdentity identity;
  identity.backend = "threads";
  identity.timeout = options.timeout;
  identity.starts_inline = size == 1;
  if (schedule) identity.waiting = schedule;
  const Join join = join_of(size, identity, options);
  const CustomBackend backend = device_backend_of(options);

  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.push_back(identity.waiting->start_thread([&, rank] {
      errors[rank] = run_rank(join, identity, {rank, size}, backend, body);
    }));
  if (schedule) schedule->begin();
  for (auto& thread : threads) identity.waiting->join(thread);
  return errors;
}

}  // namespace muster::comm
