#pragma once

#include <sys/types.h>

#include <csignal>

#include "base/descriptor.h"
#include "cluster/report.h"
#include "muster/base/environment.h"

namespace muster::launcher {

/// How a process ended. A plain value.
struct ExitStatus {
  int code = 0;    ///< exit code, unless a signal ended the process
  int signal = 0;  ///< number of the signal, or 0

  bool failed() const { return code != 0 || signal != 0; }
  /// The status that a shell reports: the exit code, or 128 + the signal.
  int exit_code() const { return signal ? 128 + signal : code; }
  /// "exited with code 3" or "was ended by signal 11 (SIGSEGV)".
  std::string describe() const;
};

/// A program to execute.
struct Program {
  std::vector<std::string> arguments;  ///< arguments, beginning with argv[0]
  std::string path;
};

/// How one rank is started.
struct RankStart {
  Environment environment = {};
  int error_fd = -1;      ///< stderr of the process; -1: inherited
  int input_fd = -1;      ///< stdin of the process; -1: inherited
  int keep_fd = -1;       ///< descriptor that stays open across exec under its number
  bool own_group = true;  ///< true: lead a new process group, so that its children can be signalled too
  int output_fd = -1;     ///< stdout of the process; -1: inherited
  int rank = 0;
  bool reports = true;                    ///< true: give the process a page for its report
  const sigset_t* signal_mask = nullptr;  ///< nullptr: inherited
};

// Why: docs/decisions/0040-how-ranks-are-started.md.

/// A rank: a process that this one started and has not waited for, with its report. It dies (SIGKILL) with the thread
/// that started it. Movable. The destructor kills a process that still runs and reaps it.
class Child {
 public:
  /// Throws: LaunchError (MU034) with the rank if the process cannot be started or exec fails.
  Child(const RankStart& start, const Program& program);
  /// Adopts a rank that another process has started. The rank leads a process group, and dies with this thread.
  /// Requires: it has become a child of this process, which has not waited for it.
  /// Throws: LaunchError (MU034) with `rank` if it is not a child.
  Child(int rank, pid_t adopted, cluster::Report report);
  Child(Child&& other) noexcept = default;
  Child& operator=(Child&& other) = delete;
  ~Child();

  int rank() const noexcept { return rank_; }
  pid_t pid() const noexcept { return pid_; }
  /// The report of the rank. The rank's environment has the descriptor of the page.
  const cluster::Report& report() const noexcept { return report_; }
  /// A descriptor that becomes readable when the process has ended.
  int pid_fd() const noexcept { return pid_fd_.get(); }
  /// Checks whether the process has ended. Does not reap it, so its id cannot be reused. Never blocks.
  void poll();
  /// Whether a signal (SIGSTOP, SIGTSTP) has stopped the process, so that it continues only at SIGCONT.
  bool is_stopped() const noexcept;
  /// The exit status that the last poll() saw; nullopt while the process runs.
  const std::optional<ExitStatus>& end() const noexcept { return end_; }
  /// Signals the process or, with `group`, all processes of its group if it leads one, even after its own end.
  void signal(int number, bool group) const noexcept;

 private:
  std::optional<ExitStatus> end_;
  bool own_group_ = false;
  pid_t pid_ = -1;
  Descriptor pid_fd_;  // empty in a child that was moved from
  int rank_ = 0;
  cluster::Report report_;
};

/// The path of the file that `name` executes, as a shell would find it.
/// Throws: ConfigError (MU031) with the reason if there is none or it cannot be executed.
std::string find_program(const std::string& name, const Environment& variables);

/// A watchdog process that briefly outlives the launcher: if the launcher is killed (kill -9), it kills the process
/// groups of the ranks, including the processes that the ranks have started. The ranks themselves die with the launcher
/// anyway.
class Reaper {
 public:
  /// Forks the reaper. Requires: one thread, no ranks yet. If the reaper cannot be started, the ranks are still
  /// watched.
  Reaper();
  /// Dismisses the reaper: it ends without killing.
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  void watch(pid_t group) const noexcept;

 private:
  pid_t pid_ = -1;
  Descriptor to_reaper_;
};

}  // namespace muster::launcher
