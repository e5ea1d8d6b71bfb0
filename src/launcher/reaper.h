#pragma once

#include <sys/types.h>

#include "base/descriptor.h"

namespace muster::launcher {

/// A watchdog process that briefly outlives the launcher: if the launcher is killed (kill -9), it kills the process
/// groups of the ranks, including the processes that the ranks have started. The ranks themselves die with the launcher
/// anyway.
class Reaper {
 public:
  /// Forks the reaper. Requires: one thread, no ranks yet. If the reaper cannot be started, the ranks are still
  /// watched.
  Reaper();
  /// Dismisses the reaper: it ends without killing.
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  void watch(pid_t group) const noexcept;

 private:
  pid_t pid_ = -1;
  Descriptor to_reaper_;
};

}  // namespace muster::launcher
