#pragma once

#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "child.h"
#include "descriptor.h"
#include "first_cause.h"
#include "muster/launcher/options.h"
#include "rank_environment.h"

namespace muster::launcher {

/// The other local ranks of a program that has made itself rank 0 by launch(), and the thread that starts and watches
/// them. It must be that thread that starts them: they die with the thread that started them.
/// Thread safety: finish() and await_failure() from any thread, finish() once.
class LocalRanks {
 public:
  /// Starts local ranks 1 and up. Throws: LaunchError (MU034).
  LocalRanks(const Job& job, const LaunchOptions& options);
  ~LocalRanks();

  /// For the end of this process with `status`: waits for the other ranks (or ends them, if status is not 0), and
  /// returns the exit code of the job. Bounded by the options' times.
  int finish(int status);
  /// Whether a rank has failed, waiting a moment for one that is about to be found.
  bool await_failure();

 private:
  using Clock = std::chrono::steady_clock;

  void start(const Job& job, const sigset_t& signal_mask);
  void watch();
  bool all_ended() const;
  void poll_until(std::optional<Clock::time_point> deadline);
  void look();
  void fail();
  void await_others();
  void end_others();

  std::optional<FirstCause> cause_;  // written by the thread under the mutex
  std::condition_variable changed_;
  std::vector<Child> children_;      // the thread's own
  bool ending_ = false;              // the thread's own: what ends now was told to
  std::exception_ptr start_error_;
  std::optional<int> finish_status_; // under the mutex
  std::mutex mutex_;
  LaunchOptions options_;
  Clock::time_point start_ = Clock::now();
  bool started_ = false;             // under the mutex
  Descriptor wake_;
  std::thread thread_;               // last: it uses all others
};

}  // namespace muster::launcher
