#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace muster::runtime {

/// Several loads as one: nothing stays changed unless all of them can be made.
/// Thread safety: one thread at a time.
class AtomicLoad {
 public:
  using Function = std::function<void()>;

  /// Loads now; `undo` puts back what was there before.
  void now(const Function& load, Function undo) {
    undo_.push_back(std::move(undo));   // also after a load that fails half-way
    load();
  }
  /// To be done by commit(); must not fail.
  void at_end(Function load) { at_end_.push_back(std::move(load)); }

  void commit() {
    for (const auto& load : at_end_) load();
    undo_.clear();
  }
  /// A load that failed changed nothing, and may fail again when its undoing is tried.
  void undo() noexcept {
    for (; !undo_.empty(); undo_.pop_back()) try {
        undo_.back()();
      } catch (...) {
      }
  }

 private:
  std::vector<Function> undo_, at_end_;
};

}  // namespace muster::runtime
