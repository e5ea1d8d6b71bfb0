#pragma once

#include <memory>

#include "muster/runtime/detail/gathering.h"
#include "muster/runtime/detail/processes.h"
#include "muster/runtime/detail/saving.h"
#include "muster/runtime/detail/torch_save.h"
#include "muster/runtime/detail/training.h"

namespace muster {

struct RuntimeOptions;

/// The runtime of one rank: its group, device, strategy, precision, and everything it prepared. It has four independent
/// sets of functions over one RuntimeState: ranks (Processes), values (Gathering), training (Training), state (Saving).
/// Accelerator and Fabric show all of it, each under the names that its users know, and add no logic.
/// Thread safety: one thread at a time.
class Runtime : public runtime::Processes, public runtime::Gathering, public runtime::Training, public runtime::Saving {
 public:
  explicit Runtime(const RuntimeOptions& options);
  /// If an exception leaves its scope, it ends the group of all ranks: the others get MU053 at once instead of waiting.
  ~Runtime();
  Runtime(Runtime&&) noexcept;
  Runtime& operator=(Runtime&&) noexcept;
  runtime::RuntimeState& state() const { return *state_; }  ///< for muster/runtime/extras.h

 private:
  explicit Runtime(std::shared_ptr<runtime::RuntimeState> state);

  std::shared_ptr<runtime::RuntimeState> state_;
};

}  // namespace muster
