#include <exception>
#include <mutex>
#include <string>

#include "base/shown.h"
#include "comm/thread_world.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/testing/world.h"

namespace muster::testing {

namespace {

[[noreturn]] void rethrow(const std::exception_ptr& error, const std::string& place) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    throw Error(failure.id(), formatted("{}: {}", place, failure.what()));
  } catch (const std::exception& failure) {
    throw Error("MU062", formatted("{}: {}", place, failure.what()));
  } catch (...) {
    throw Error("MU062", formatted("{}: {}", place, kNoStdException));
  }
}

}  // namespace

void run_threads(int size, uint64_t seed, const std::function<void(comm::Communicator)>& body) {
  if (size < 1) throw LaunchError("MU064", formatted("a world of {} ranks; at least 1 is wanted", size));
  std::mutex mutex;
  std::exception_ptr first;  // the first error: those of other ranks are often its consequence
  int rank = 0;
  comm::run_thread_world(size, {.seed = seed}, [&](const comm::Communicator& group) {
    try {
      body(group);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception(), rank = group.rank();
      throw;
    }
  });
  if (first) rethrow(first, formatted("rank {} of {} threads, seed {}", rank, size, seed));
}

}  // namespace muster::testing
