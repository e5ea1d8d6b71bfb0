#pragma once

#include "muster/runtime.h"

namespace muster::trainer {

/// The decision to end training. One rank's request is enough; all ranks end at the same place. On several ranks
/// requests are votes, which travel with gradients. Thread safety: one thread at a time.
class StopVote {
 public:
  explicit StopVote(const Runtime& runtime) : runtime_(runtime) {}

  void request();
  /// Begins a run and drops votes of the previous run, which an exception may have left among its gradients.
  void begin();
  /// Sets a decision that ranks agreed on by other means.
  void set(bool agreed);
  /// Combines the requests of all ranks where no gradients follow to carry them. Collective.
  void agree();
  /// The last decision of the ranks, equal on all of them.
  bool agreed() const noexcept { return agreed_; }
  /// Whether this rank has requested a stop, or all ranks have agreed on one.
  bool requested() const noexcept { return agreed_ || requested_; }

 private:
  const Runtime& runtime_;
  bool agreed_ = false, requested_ = false;
};

}  // namespace muster::trainer
