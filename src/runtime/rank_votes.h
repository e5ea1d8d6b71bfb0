#pragma once

#include <optional>

#include "base/mutex.h"
#include "base/signals.h"
#include "muster/comm/communicator.h"
#include "muster/runtime/loop_access.h"
#include "parallel/reduction_record.h"

namespace muster::runtime {

/// This rank's votes, which are its trigger, its stop request and the signals that it has received, and what all ranks
/// have voted. Under ddp votes travel with the flags of reductions. Thread safety: all functions may be called from
/// several threads; only one of them may call agree() and forget().
class RankVotes final : public parallel::Piggyback {
 public:
  void set_trigger(bool on) noexcept { trigger_ = on; }
  bool trigger() const noexcept { return trigger_; }
  void set_stop(bool on) noexcept { stop_ = on; }

  /// Catches SIGTERM and SIGUSR1 from now on. Returns false, with nothing changed, if they are caught already.
  bool catch_signals();
  void release_signals();
  /// The signal that this rank has received; 0: none, or signals are not caught.
  int received() const;
  void forget_signal(int signal);

  /// The implementation of muster::agreed_votes(). Collective, unless votes have arrived with gradients.
  Votes agree(const comm::Communicator& group);
  /// The implementation of muster::forget_votes().
  void forget();

  unsigned send() override;
  void receive(unsigned any) override;

 private:
  /// This rank's votes, one bit each.
  unsigned own() const MUSTER_REQUIRES(mutex_);

  std::atomic<bool> trigger_ = false, stop_ = false;
  mutable base::Mutex mutex_;
  std::unique_ptr<SignalWatch> signals_ MUSTER_GUARDED_BY(mutex_);  // watch from catch_signals() to release_signals()
  unsigned sent_ MUSTER_GUARDED_BY(mutex_) = 0;  // votes of this rank that were sent since the last agree()
  // Votes that any rank has given, by reductions since the last agree().
  std::optional<unsigned> arrived_ MUSTER_GUARDED_BY(mutex_);
};

}  // namespace muster::runtime
