#pragma once

#include "muster/runtime/loop_access.h"

namespace muster::trainer {

/// While it lives, signals are recorded. From its begin on, an uncaught Terminated ends the process with its exit code.
class TerminationScope {
 public:
  explicit TerminationScope(const Runtime& runtime);
  CaughtSignals& signals() noexcept { return signals_; }

 private:
  CaughtSignals signals_;
};

}  // namespace muster::trainer
