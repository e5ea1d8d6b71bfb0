#pragma once  // for other rooms

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "muster/comm/communicator.h"
#include "muster/comm/rendezvous.h"

namespace muster::comm {

/// Options of ranks that run as threads of one process.
struct ThreadWorldOptions {
  /// Number of ranks on each of several hosts, one host after another. Operations then run as in the backend
  /// "hierarchical". Empty: no hosts.
  std::vector<int> hosts{};
  int kill_rank = -1;     ///< rank that fails at its step `kill_step`, as if its process had died; -1: no rank fails
  int64_t kill_step = 0;  ///< step counted in messages of the first group that the rank sends or receives
  std::shared_ptr<const BackendEntry> device_backend{};  ///< see GroupOptions; null: there is none
  uint64_t seed = 0;           ///< 0: threads run freely; otherwise one at a time, in an order drawn from the seed
  bool shared_memory = false;  ///< whether ranks use shared memory, as processes do, instead of messages
  /// Timeout of each operation. With a seed it expires at once when no rank can proceed.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  bool two_level_sums = false;  ///< see GroupOptions
};

/// Runs `body` as `size` ranks, each in its own thread, over the backend "threads", and returns what each rank threw
/// (null if nothing). With a seed, a rank may wait for another only through its communicator.
std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body);

}  // namespace muster::comm
