#pragma once

#include <sys/types.h>

#include "descriptor.h"

namespace muster::launcher {

/// A watchdog process that outlives the launcher for a moment: if the launcher is killed (kill -9), it kills the
/// process groups of the ranks, and so the processes that the ranks have started. The ranks themselves die with the
/// launcher anyway.
class Keeper {
 public:
  /// Forks. Requires: one thread, no ranks yet. If no keeper can be started, the ranks are still watched.
  Keeper();
  /// Dismisses the keeper: it ends without killing.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void watch(pid_t group) const noexcept;

 private:
  pid_t pid_ = -1;
  Descriptor to_keeper_;
};

}  // namespace muster::launcher
