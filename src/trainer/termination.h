#pragma once

#include "muster/runtime/loop_access.h"

namespace muster::trainer {

/// Records signals during its lifetime. From its construction on, an uncaught Terminated ends the process with its exit
/// code.
/// Why: docs/decisions/0108-how-a-signal-ends-training.md.
class TerminationScope {
 public:
  explicit TerminationScope(const Runtime& runtime);
  CaughtSignals& signals() noexcept { return signals_; }

 private:
  CaughtSignals signals_;
};

}  // namespace muster::trainer
