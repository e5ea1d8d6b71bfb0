#pragma once

#include <chrono>

namespace muster::comm::mpi {

/// How a thread polls: first without a pause, then yielding its core, and after a while with short sleeps.
class Backoff {
 public:
  /// Waits a little. Returns whether nothing has happened for a while.
  bool wait();
  /// Starts over, because something has happened.
  void reset() noexcept { polls_ = 0; }

 private:
  int polls_ = 0;
  std::chrono::steady_clock::time_point idle_since_{};
};

}  // namespace muster::comm::mpi
