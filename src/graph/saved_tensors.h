#pragma once  // for other rooms

#include <memory>

#include "hook/interceptor.h"

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace muster::graph {

/// Keeps the recorder of operators and the autograd engine that it needs out of the process.
inline constexpr hook::DisableVariable kRecorderSwitch{"MUSTER_NO_RECOMPUTE"};

/// Installs an autograd engine that asks SavedTensorScope about saved tensors, once per process, on the first call.
/// Other scopes may be open, and graphs made before may go backward afterwards.
/// Throws: UsageError (MU587) if the environment forbids it, or if another library has installed its own engine.
/// Thread-safe.
void install_engine();

/// While it exists, it decides what becomes of the tensors that autograd saves on this thread. The innermost scope
/// decides alone.
/// Requires: install_engine() was called.
/// Thread safety: made, used and destroyed by one thread.
class SavedTensorScope {
 public:
  SavedTensorScope();
  virtual ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  /// The innermost scope of this thread, or nullptr.
  static SavedTensorScope* current() noexcept;
  /// Hooks for a tensor that autograd is about to save; nullptr: it is saved as always.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 private:
  SavedTensorScope* const outer_;
};

}  // namespace muster::graph
