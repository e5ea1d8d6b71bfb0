#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <vector>

#include "child.h"
#include "first_cause.h"
#include "muster/cluster/report.h"

namespace muster::launcher {

/// Sees the ends of the ranks of one node, finds the first cause of a failure, and ends all others then.
/// It neither waits nor prints: whoever drives it polls what add_to() names for poll_timeout(), and calls look() after it.
/// Thread safety: one thread.
class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;

  /// A rank that is the driver's own process.
  struct Own {
    int rank = 0;
    cluster::Report report;
  };
  struct Setup {
    std::vector<Child>* children;     ///< borrowed; complete before the first look()
    std::chrono::milliseconds grace;  ///< between SIGTERM and SIGKILL, and how long an echo waits for a rank that gave no answer
    Layout layout;
    std::optional<Own> own;
  };
  explicit Supervisor(Setup setup) : setup_(std::move(setup)) {}

  /// Sees who has ended. At the first cause all are told to end, and are killed `grace` later.
  /// Every end is seen here and nowhere else, so none can slip in between what is judged and what is polled.
  void look();
  /// The driver's own rank is about to end like this.
  void own_ends(End end) { own_end_ = end; }
  /// What ends from now on was told to: no first cause is sought any more, and what still runs after this time is killed.
  void stop(std::chrono::milliseconds grace);

  bool all_ended() const;
  const std::optional<FirstCause>& cause() const noexcept { return cause_; }
  /// All ranks as they stand.
  std::vector<SeenRank> seen() const;
  const Layout& layout() const noexcept { return setup_.layout; }

  void add_to(std::vector<pollfd>& entries) const;
  /// Until something is due: milliseconds, or -1.
  int poll_timeout() const;
  void signal_all(int number, bool group) const;

 private:
  void find_cause();
  Clock::time_point waited_until(Waited waited) const;
  void kill_if_due();

  std::optional<FirstCause> cause_;
  std::optional<Clock::time_point> failed_at_;  // when the first failure was seen
  std::optional<Clock::time_point> kill_at_;
  std::optional<End> own_end_;
  Setup setup_;
  Clock::time_point start_ = Clock::now();
  bool stopped_ = false;
};

}  // namespace muster::launcher
