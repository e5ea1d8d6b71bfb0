#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "root_cause.h"

namespace muster::launcher {

/// Why a round failed.
struct Failure {
  std::chrono::milliseconds after{0};  ///< between the start of the round and its root cause
  bool made_steps = false;             ///< some rank has reported a step of an optimizer
  std::string what = {};               ///< one line
};
/// A round lasts from one start of all ranks until the last of them has ended; this is how it ended.
struct Round {
  int code = 0;
  std::optional<Failure> failure;  ///< none: it succeeded, or a signal stopped it
  bool stopped = false;            ///< by a signal to the launcher
};

/// Decides whether and when another round follows one that failed, and keeps their causes.
/// A round fails too soon if no rank has made an optimizer step and it lasted less than a minute. The next round begins
/// at once, but after the second round in a row that failed too soon it waits 1 s, and after the third 2 s. After the
/// fourth there is none.
class Restarts {
 public:
  explicit Restarts(int max_restarts) : max_restarts_(max_restarts) {}

  /// How long to wait before the next round; std::nullopt: there is none.
  std::optional<std::chrono::milliseconds> next(const Failure& failure);
  /// How often the ranks have been started again, with the round that next() announced.
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
  int too_soon_ = 0;      // rounds in a row
  std::chrono::milliseconds wait_{0};
};

/// A root cause in one line, with the first line of the error that ended the rank.
std::string one_line(const RootCause& cause);

}  // namespace muster::launcher
