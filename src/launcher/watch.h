#pragma once

#include <sys/signalfd.h>

#include <chrono>
#include <optional>
#include <vector>

#include "child.h"
#include "console.h"
#include "descriptor.h"
#include "first_cause.h"

namespace muster::launcher {

/// The signals that the launcher passes on, taken by a descriptor instead of handlers while this lives.
class RelayedSignals {
 public:
  RelayedSignals();
  ~RelayedSignals();
  RelayedSignals(const RelayedSignals&) = delete;
  RelayedSignals& operator=(const RelayedSignals&) = delete;

  int fd() const noexcept { return fd_.get(); }
  /// The next signal, or 0. Never blocks.
  int next() const;
  /// The mask from before, for the ranks.
  const sigset_t& mask_before() const noexcept { return before_; }

 private:
  sigset_t before_;
  Descriptor fd_;
};

/// Watches the ranks of a `muster run` until all have ended, and passes output and signals on.
class Watch {
 public:
  struct Parts {
    std::vector<Child>* children;
    Console* console;
    std::chrono::milliseconds grace;
    const RelayedSignals* signals;
  };
  explicit Watch(Parts parts) : parts_(parts) {}

  /// Returns the exit code of the job.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  bool all_ended() const;
  void look();
  void handle_signals();
  void relay(int number);
  void suspend();
  void signal_all(int number, bool group);
  void end_within(std::chrono::milliseconds grace);
  void check_deadline();
  int poll_timeout() const;
  void poll_once(bool processes);
  void drain();
  int exit_code() const;

  std::optional<FirstCause> cause_;
  std::optional<Clock::time_point> deadline_;  // when what still runs is killed
  Parts parts_;
  Clock::time_point start_ = Clock::now();
  int stop_signal_ = 0;                        // what the launcher was told to stop by
};

}  // namespace muster::launcher
