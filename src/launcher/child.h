#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "cluster/report.h"
#include "muster/base/detail/environment.h"

namespace muster::launcher {

/// How a process ended. A plain value.
struct ExitStatus {
  int code = 0;    ///< exit code, if no signal ended it
  int signal = 0;  ///< number of the signal, or 0

  bool failed() const { return code != 0 || signal != 0; }
  /// What a shell reports: the exit code, or 128 + the signal.
  int exit_code() const { return signal ? 128 + signal : code; }
  /// "exited with code 3" or "was ended by signal 11 (SIGSEGV)".
  std::string describe() const;
};

/// A program to execute.
struct Program {
  std::vector<std::string> arguments;  ///< the first is the program's name as it sees it
  Environment environment;
  std::string path;
};

/// Descriptors and signals of a new process.
struct SpawnAttributes {
  int error_fd = -1;      ///< becomes stderr; -1: inherited
  int input_fd = -1;      ///< becomes stdin; -1: inherited
  int keep_fd = -1;       ///< stays open across exec, with the same number
  bool own_group = true;  ///< leads a new process group, so that processes it starts can be signalled with it
  int output_fd = -1;     ///< becomes stdout; -1: inherited
  bool reports = true;    ///< gets a page for its report
  const sigset_t* signal_mask = nullptr;  ///< nullptr: inherited
};

/// A rank: a process that we started and have not waited for, and its report. It dies (SIGKILL) with the thread that
/// started it. Movable. The destructor ends a process that still runs and reaps it.
class Child {
 public:
  /// Throws: LaunchError (MU034), naming `rank`, if it cannot be started or executed.
  Child(int rank, const Program& program, const SpawnAttributes& attributes);
  /// Takes over a rank that another process has started. It leads a process group, and dies with this thread.
  /// Requires: it has become a child of this process, which has not waited for it.
  /// Throws: LaunchError (MU034), naming `rank`, if it is no child.
  Child(int rank, pid_t adopted, cluster::Report report);
  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) = delete;
  ~Child();

  int rank() const noexcept { return rank_; }
  pid_t pid() const noexcept { return pid_; }
  /// Its report. Its environment names the descriptor of the page.
  const cluster::Report& report() const noexcept { return report_; }
  /// Readable once the process has ended.
  int pid_fd() const noexcept { return pid_fd_; }
  /// Checks whether it has ended. Does not reap it, so its id cannot be reused. Never blocks.
  void poll();
  /// Whether a signal has stopped it (SIGSTOP, SIGTSTP), so that it goes on at SIGCONT only.
  bool is_stopped() const noexcept;
  /// The exit status that the last poll() saw; empty while the process runs.
  const std::optional<ExitStatus>& end() const noexcept { return end_; }
  /// Signals the process, or also all others of its group (if it leads one), even after its own end.
  void signal(int number, bool group) const noexcept;

 private:
  std::optional<ExitStatus> end_;
  bool own_group_ = false;
  pid_t pid_ = -1;
  int pid_fd_ = -1;
  int rank_ = 0;
  cluster::Report report_;
};

/// The path of the file that `name` executes, as a shell would find it.
/// Throws: ConfigError (MU031), with the reason, if there is none or it cannot be executed.
std::string find_program(const std::string& name, const Environment& variables);

}  // namespace muster::launcher
