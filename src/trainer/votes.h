#pragma once

#include "muster/runtime.h"
#include "muster/runtime/loop_access.h"

namespace muster::trainer {

class Checkpoints;
class Run;
class Watchers;

/// The decision to end training, owned by the Run. One rank's request is enough; all ranks end at the same place. On
/// several ranks requests are votes, which travel with gradients. Thread safety: one thread at a time.
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

/// Acts between two batches on what ranks have voted for: a stop, a checkpoint that is due by time, a signal. Owned by
/// the Core. Thread safety: one thread at a time.
class VoteHandler {
 public:
  VoteHandler(Run& run, const Watchers& watchers, Checkpoints& checkpoints)
      : run_(run), watchers_(watchers), checkpoints_(checkpoints) {}

  /// Records signals from now on, until end(). From the first call on, an uncaught Terminated ends the process with its
  /// exit code.
  /// Why: docs/decisions/0108-how-a-signal-ends-training.md.
  void begin();
  void end() { signals_.reset(); }
  /// Whether this rank has received SIGTERM since begin().
  bool terminated();
  /// Throws: Terminated after a SIGTERM, once a checkpoint is saved. Collective.
  void handle();

 private:
  void save_for_signal(int signal);

  Run& run_;
  const Watchers& watchers_;
  Checkpoints& checkpoints_;
  std::optional<CaughtSignals> signals_;  // those of the current fit(); empty outside of it
};

}  // namespace muster::trainer
