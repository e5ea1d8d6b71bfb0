#pragma once

#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "child.h"
#include "launcher/job.h"
#include "muster/launcher/options.h"
#include "supervisor.h"

namespace muster::launcher {

/// The other local ranks of a program that became local rank 0 through launch(), and the thread that starts them and
/// drives their supervisor. That thread must start them, since ranks die with the thread that started them.
/// Thread safety: finish() and other_rank_is_root_cause() from any thread, finish() once.
class LocalRanks {
 public:
  /// Starts local ranks 1 and up. Throws: LaunchError (MU034).
  LocalRanks(const Job& job, const LaunchOptions& options);
  ~LocalRanks();

  /// Called when this process ends with `status`: waits for the other ranks (or ends them, if status is not 0), and
  /// returns the exit code of the job. Bounded by the options' time-outs.
  int finish(int status);
  /// Information about an uncaught exception.
  struct Uncaught {
    bool is_error = false;  ///< true for a muster::Error, which ends the process with cluster::kUncaughtError
    std::string message;
  };
  /// Called when the exception ends this process: returns whether another rank is the root cause. If so, that cause is
  /// printed, then the exception, and the process ends soon. Bounded by the options' time-outs.
  bool other_rank_is_root_cause(const Uncaught& exception);
  /// The page for this process's reports.
  const cluster::Report& report() const noexcept { return report_; }

 private:
  using Clock = Supervisor::Clock;

  void start(const Job& job, const sigset_t& signal_mask);
  void watch();
  std::optional<ExitStatus> own_end();
  void poll_until(std::optional<Clock::time_point> deadline);
  void print_cause();
  void print_other_errors();
  void await_others();
  void end_others();
  void end_process();

  std::condition_variable changed_;
  std::vector<Child> children_;     // used only by the thread
  std::optional<RootCause> cause_;  // written by the thread under the mutex
  std::exception_ptr start_error_;
  bool finishing_ = false;  // finish() was called; guarded by the mutex
  std::mutex mutex_;
  LaunchOptions options_;
  std::optional<ExitStatus> own_end_;  // guarded by the mutex
  int own_rank_;
  cluster::Report report_ = cluster::Report::make();
  bool started_ = false;                  // guarded by the mutex
  std::optional<Supervisor> supervisor_;  // used only by the thread
  Descriptor wake_;
  bool printed_root_cause_ = false;  // other_rank_is_root_cause() has printed its message; guarded by the mutex
  std::thread thread_;               // last member, since it uses all others
};

}  // namespace muster::launcher
