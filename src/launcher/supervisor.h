#pragma once

#include <poll.h>

#include "child.h"
#include "cluster/report.h"
#include "root_cause.h"

namespace muster::launcher {

/// Detects the ends of the ranks of one node, finds the root cause of a failure, and then ends all other ranks. It
/// neither waits nor prints: its driver polls the entries of add_to() until due(), and then calls poll().
/// Thread safety: one thread.
class Supervisor {
 public:
  using Clock = std::chrono::steady_clock;

  /// The driver's own process, if it is a rank.
  struct Own {
    int rank = 0;
    cluster::Report report;
  };
  struct Setup {
    std::vector<Child>* children;  ///< borrowed; complete before the first poll()
    std::chrono::milliseconds
        grace;  ///< time between SIGTERM and SIGKILL, and for an unresponsive rank to respond after a secondary failure
    NodeLayout layout;
    std::optional<Own> own;
  };
  explicit Supervisor(Setup setup) : setup_(std::move(setup)) {}

  /// Checks which ranks have ended. At a root cause all ranks get SIGTERM, and `grace` later SIGKILL. Ends are detected
  /// only here, so that none is missed between the search for the cause and the wait.
  void poll();
  /// Notes that the driver's own rank is about to end with this status.
  void own_ends(ExitStatus end) { own_end_ = end; }
  /// Declares that ranks end on request from now on: no root cause is sought, and ranks that still run after `grace`
  /// are killed.
  void stop(std::chrono::milliseconds grace);

  /// Ends all ranks without a cause on this node: they get SIGTERM, and SIGKILL after the grace time.
  void end_all();

  /// A line to print once: see describe_last_rank().
  std::optional<std::string> take_notice() { return std::exchange(notice_, std::nullopt); }
  bool all_ended() const;
  /// Whether any rank has reported an update.
  bool made_steps() const;
  const std::optional<RootCause>& cause() const noexcept { return cause_; }
  /// The current state of all ranks.
  std::vector<RankSnapshot> snapshot() const;
  const NodeLayout& layout() const noexcept { return setup_.layout; }

  void add_to(std::vector<pollfd>& entries) const;
  /// When poll() must be called; time_point::max(): once an entry is ready.
  Clock::time_point due() const;
  void signal_all(int number, bool group) const;

 private:
  void find_cause();
  void watch_last_rank(const std::vector<RankSnapshot>& ranks);
  void end_by(RootCause cause);
  Clock::time_point waited_until(WaitedFor waited) const;

  std::optional<RootCause> cause_;
  std::optional<Clock::time_point> failed_at_;  // time at which the first failure was seen
  std::optional<Clock::time_point> kill_at_;
  std::optional<Clock::time_point> look_at_;  // next check; set while a rank runs that another one has lost
  std::optional<std::string> notice_;
  bool noticed_ = false;
  std::optional<ExitStatus> own_end_;
  Setup setup_;
  Clock::time_point start_ = Clock::now();
  bool stopped_ = false;
};

}  // namespace muster::launcher
