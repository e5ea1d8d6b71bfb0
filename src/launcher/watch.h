#pragma once

#include <signal.h>

#include "base/descriptor.h"
#include "child.h"
#include "console.h"
#include "supervisor.h"

namespace muster::launcher {

/// During its lifetime, receives the signals that the launcher forwards, through a descriptor instead of handlers.
class RelayedSignals {
 public:
  RelayedSignals();
  ~RelayedSignals();
  RelayedSignals(const RelayedSignals&) = delete;
  RelayedSignals& operator=(const RelayedSignals&) = delete;

  int fd() const noexcept { return fd_.get(); }
  /// The next signal, or 0. Never blocks.
  int next() const;
  /// The signal mask before construction, for the ranks.
  const sigset_t& mask_before() const noexcept { return before_; }
  /// Waits, while no rank runs, until `time`, until one of `others` is ready, or until a signal stops the job; returns
  /// its number, or 0.
  int wait_until(Supervisor::Clock::time_point time, std::vector<pollfd> others = {}) const;

 private:
  sigset_t before_;
  Descriptor fd_;
};

class NodeAgent;
class RendezvousProbe;

/// Drives the supervisor of a `muster run` until all ranks have ended, and forwards output and signals.
class Watch {
 public:
  struct Owners {
    NodeAgent* agent;  ///< agent of a job with a rendezvous of several nodes; else nullptr
    Console* console;
    RendezvousProbe* probe;  ///< probe of a job on several nodes without a rendezvous; else nullptr
    const RelayedSignals* signals;
    Supervisor* supervisor;
  };
  explicit Watch(Owners owners) : owners_(owners) {}

  /// Returns the exit code of the job: that of the root cause, 0 if none failed, 128 + the signal that stopped it.
  /// Throws: LaunchError (MU513) if the ranks would wait in vain.
  int run(const std::vector<Child>& children);
  /// Whether a signal has stopped the job.
  bool stopped() const noexcept { return stop_signal_ != 0; }

 private:
  void attend_to_job();
  void relay(int number, bool& asked);
  void poll_once(bool processes, Supervisor::Clock::time_point deadline = Supervisor::Clock::time_point::max());
  void drain(int first_rank);
  void print_cause(int first_rank);

  bool asked_by_node_0_ = false, asked_here_ = false;  // sources that have requested a stop
  Owners owners_;
  int stop_signal_ = 0;  // signal that stopped the launcher
};

}  // namespace muster::launcher
