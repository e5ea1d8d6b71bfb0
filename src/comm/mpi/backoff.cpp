#include "comm/mpi/backoff.h"

#include <sched.h>

#include <thread>

namespace muster::comm::mpi {

bool Backoff::wait() {
  using std::chrono::milliseconds, std::chrono::microseconds;
  constexpr int kAtOnce = 64;
  if (polls_ < kAtOnce) {
    if (polls_++ == 0) idle_since_ = std::chrono::steady_clock::now();
    return false;
  }
  const auto idle = std::chrono::steady_clock::now() - idle_since_;
  if (idle < milliseconds(2)) return ::sched_yield(), false;
  std::this_thread::sleep_for(microseconds(idle < milliseconds(500) ? 50 : 500));
  return true;
}

}  // namespace muster::comm::mpi
