#pragma once

#include "root_cause.h"

namespace muster::launcher {

/// The failure of a round.
struct Failure {
  std::chrono::milliseconds after{0};  ///< time from the start of the round to its root cause
  bool made_steps = false;             ///< some rank has reported a step of an optimizer
  std::string what = {};               ///< cause in one line
};
/// The end of a round, which lasts from a start of all ranks until the last of them has ended.
struct Round {
  int code = 0;
  std::optional<Failure> failure;  ///< nullopt: it succeeded, or a signal stopped it
  bool stopped = false;            ///< a signal to the launcher stopped it
};

// Why: docs/decisions/0113-when-a-job-is-started-again.md.

/// Decides whether and when another round follows a failed one, and keeps the causes. A round has failed too soon if no
/// rank made an optimizer step and it lasted less than a minute. The next round begins at once, but after the second
/// round in a row that failed too soon it waits 1 s, and after the third 2 s. After the fourth there is none.
class Restarts {
 public:
  explicit Restarts(int max_restarts) : max_restarts_(max_restarts) {}

  /// The time to wait before the next round; nullopt: there is none.
  std::optional<std::chrono::milliseconds> next(const Failure& failure);
  /// The number of restarts, including the round that next() announced.
  int count() const noexcept { return count_; }
  /// One line about the round that next() announced.
  std::string announcement() const;
  /// Lines for the end of the job: why there is no further round, and the cause of each failure; none if the job could
  /// not be restarted or no round has failed.
  std::vector<std::string> summary() const;

 private:
  std::vector<std::string> causes_;
  int count_ = 0;
  int max_restarts_;
  bool refused_ = false;  // next() has refused another round
  int too_soon_ = 0;      // number of consecutive rounds that failed too soon
  std::chrono::milliseconds wait_{0};
};

/// The root cause in one line, with the first line of the error that ended the rank.
std::string one_line(const RootCause& cause);

}  // namespace muster::launcher
