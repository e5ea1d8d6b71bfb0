#include "base/mutex.h"
#include "base/text.h"
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

/// The first error of all threads: those of other ranks are often its consequence.
struct FirstError {
  base::Mutex mutex;
  std::exception_ptr error MUSTER_GUARDED_BY(mutex);
  int rank MUSTER_GUARDED_BY(mutex) = 0;
};

}  // namespace

void run_threads(int size, uint64_t seed, const std::function<void(comm::Communicator)>& body) {
  if (size < 1) throw LaunchError("MU064", formatted("a world of {} ranks; at least 1 is wanted", size));
  FirstError first;
  comm::run_thread_world(size, {.seed = seed}, [&](const comm::Communicator& group) {
    try {
      body(group);
    } catch (...) {
      const base::Lock lock(first.mutex);
      if (!first.error) first.error = std::current_exception(), first.rank = group.rank();
      throw;
    }
  });
  const base::Lock lock(first.mutex);
  if (first.error) rethrow(first.error, formatted("rank {} of {} threads, seed {}", first.rank, size, seed));
}

}  // namespace muster::testing
