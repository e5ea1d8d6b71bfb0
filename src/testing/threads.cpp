#include <exception>
#include <string>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/comm/detail/thread_world.h"
#include "muster/testing/world.h"

namespace muster::testing {

void run_threads(int size, uint64_t seed, const std::function<void(comm::Communicator)>& body) {
  auto errors = comm::run_thread_world(size, {.seed = seed}, body);
  for (int rank = 0; rank < size; ++rank) {
    if (!errors[rank]) continue;
    auto place = formatted("rank {} of {} threads, seed {}", rank, size, seed);
    try {
      std::rethrow_exception(errors[rank]);
    } catch (const Error& error) {
      throw Error(error.id(), formatted("{}: {}", place, error.what()));
    } catch (const std::exception& error) {
      throw Error("MU062", formatted("{}: {}", place, error.what()));
    }
  }
}

}  // namespace muster::testing
