#pragma once

#include "muster/runtime.h"

namespace muster::trainer {

/// Whether training is to end. One rank's request is enough; all ranks end at the same place. On several ranks requests
/// are votes, which come with gradients. Thread safety: one thread at a time.
class StopVote {
 public:
  explicit StopVote(const Runtime& runtime) : runtime_(runtime) {}

  void request();
  /// A run begins: no vote of the one before counts, which an exception may have left in its gradients.
  void begin();
  /// What ranks have agreed on otherwise.
  void set(bool agreed);
  /// Combines the requests of all ranks where no gradients follow that would bring them. Collective.
  void agree();
  /// What the ranks agreed on last; the same on all of them.
  bool agreed() const noexcept { return agreed_; }
  /// Whether this rank has made a request, or all have agreed.
  bool requested() const noexcept { return agreed_ || requested_; }

 private:
  const Runtime& runtime_;
  bool agreed_ = false, requested_ = false;
};

}  // namespace muster::trainer
