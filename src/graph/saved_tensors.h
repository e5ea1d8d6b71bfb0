#pragma once

#include <memory>

namespace torch::autograd {
struct SavedVariableHooks;
}

namespace muster::graph {

/// Installs an autograd engine that asks SavedTensorScope about saved tensors, once per process, on the first call.
/// Other scopes may be open, and graphs made before may go backward afterwards.
/// Throws: UsageError (MU587) if another library has installed its own engine.
/// Thread-safe.
void install_engine();

/// Whether this thread is inside a backward. Tells the same as hook::current_backward(), at a fraction of the cost.
/// Requires: install_engine() was called.
bool in_backward() noexcept;

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

  /// Hooks for a tensor that autograd is about to save; nullptr: it is saved as always.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;

 private:
  SavedTensorScope* const outer_;
};

}  // namespace muster::graph
