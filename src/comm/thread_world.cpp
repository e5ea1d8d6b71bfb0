#include "muster/comm/detail/thread_world.h"

#include <memory>
#include <thread>
#include <utility>

#include "comm/group.h"
#include "comm/schedule.h"
#include "comm/thread_transport.h"

namespace muster::comm {
namespace {

std::exception_ptr run_rank(const std::shared_ptr<ThreadHub>& hub, const GroupIdentity& identity, int rank,
                            const std::function<void(Communicator)>& body) {
  try {
    auto collectives = identity.starts_inline ? make_solo() : make_pairwise(hub->join(hub, rank));
    body(Communicator(std::make_shared<Group>(identity, std::move(collectives))));
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body) {
  auto schedule = options.seed ? std::make_shared<Schedule>(options.seed) : nullptr;
  GroupIdentity identity;
  identity.backend = "threads";
  identity.timeout = options.timeout;
  identity.starts_inline = size == 1;
  if (schedule) identity.waiting = schedule;
  auto hub = std::make_shared<ThreadHub>(size, identity.waiting);
  if (options.kill_rank >= 0) hub->kill(options.kill_rank, options.kill_step);

  std::vector<std::exception_ptr> errors(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.push_back(
        identity.waiting->start_thread([&, rank] { errors[rank] = run_rank(hub, identity, rank, body); }));
  if (schedule) schedule->begin();
  for (auto& thread : threads) identity.waiting->join(thread);
  return errors;
}

}  // namespace muster::comm
