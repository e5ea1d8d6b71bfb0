#pragma once

#include <chrono>

namespace muster::comm::mpi {

/// How a thread polls: at once, then giving up its core, and after a while in naps.
class Backoff {
 public:
  /// Waits a little. Returns whether nothing has happened for a while.
  bool wait();
  /// Something has happened.
  void reset() noexcept { polls_ = 0; }

 private:
  int polls_ = 0;
  std::chrono::steady_clock::time_point idle_since_{};
};

}  // namespace muster::comm::mpi
