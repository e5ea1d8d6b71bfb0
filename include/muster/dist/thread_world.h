#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "muster/dist/communicator.h"

namespace muster::dist {

/// How ranks run as threads of one process.
struct ThreadWorldOptions {
  int kill_rank = -1;           ///< this rank fails at its step `kill_step`, as if its process had died; -1: none
  int64_t kill_step = 0;        ///< counts the messages of the first group that the rank sends or takes
  uint64_t seed = 0;            ///< 0: threads run freely; otherwise one at a time, in an order drawn from the seed
  double timeout_seconds = 60;  ///< of an operation; under a seed it passes at once when nobody can go on
};

/// Runs `body` as `size` ranks, each in a thread of its own, over the backend "threads", and returns what each rank threw
/// (null if nothing). Under a seed a rank must wait for another only by way of its communicator.
std::vector<std::exception_ptr> run_thread_world(int size, const ThreadWorldOptions& options,
                                                 const std::function<void(Communicator)>& body);

}  // namespace muster::dist
