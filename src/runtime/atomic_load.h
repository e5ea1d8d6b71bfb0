#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace muster::runtime {

// Why: docs/decisions/0062-the-state-of-a-job.md.

/// Groups several loads: either all of them succeed, or undo() restores what was there before.
/// Thread safety: one thread at a time.
class AtomicLoad {
 public:
  using Function = std::function<void()>;

  /// Loads at once; `undo` restores what was there before.
  void now(const Function& load, Function undo) {
    undo_.push_back(std::move(undo));  // also if the load fails half-way
    load();
  }
  /// Defers `load` to commit(); it must not fail.
  void at_end(Function load) { at_end_.push_back(std::move(load)); }

  void commit() {
    for (const auto& load : at_end_) load();
    undo_.clear();
  }
  /// Calls the undo functions in reverse order. Ignores their exceptions: the undo of a load that failed without a
  /// change may fail as well.
  void undo() noexcept {
    for (; !undo_.empty(); undo_.pop_back()) try {
        undo_.back()();
      } catch (...) {}
  }

 private:
  std::vector<Function> undo_, at_end_;
};

}  // namespace muster::runtime
