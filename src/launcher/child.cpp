#include "launcher/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "base/variables.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

/// Everything the new process needs, prepared before the fork: after it nothing may allocate.
struct Image {
  std::vector<char*> arguments, environment;
  std::vector<std::string> lines;
  const char* path;

  Image(const Program& program, const Environment& variables) : lines(variables.lines()), path(program.path.c_str()) {
    for (const auto& argument : program.arguments) arguments.push_back(const_cast<char*>(argument.c_str()));
    for (const auto& line : lines) environment.push_back(const_cast<char*>(line.c_str()));
    arguments.push_back(nullptr);
    environment.push_back(nullptr);
  }
};

void replace_descriptor(int from, int to) {
  if (from >= 0) dup2(from, to);
}

/// Runs in the new process and uses only async-signal-safe calls. Writes errno to `report` if exec fails.
[[noreturn]] void become(const Image& image, const RankStart& start, pid_t parent, int report, int page) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  if (start.own_group) setpgid(0, 0);
  replace_descriptor(start.input_fd, STDIN_FILENO);
  replace_descriptor(start.output_fd, STDOUT_FILENO);
  replace_descriptor(start.error_fd, STDERR_FILENO);
  for (int kept : {start.keep_fd, page})
    if (kept >= 0) fcntl(kept, F_SETFD, 0);
  std::signal(SIGPIPE, SIG_DFL);
  if (start.signal_mask) pthread_sigmask(SIG_SETMASK, start.signal_mask, nullptr);
  execve(image.path, image.arguments.data(), image.environment.data());
  int error = errno;
  [[maybe_unused]] auto written = write(report, &error, sizeof error);
  _exit(127);
}

/// 0 once the program has replaced the process; errno if exec failed.
int await_exec(const Descriptor& report) {
  int error = 0;
  ssize_t size;
  do size = read(report.get(), &error, sizeof error);
  while (size < 0 && errno == EINTR);
  return size == sizeof error ? error : 0;
}

[[noreturn]] void refuse(int rank, const std::string& what, int error) {
  throw LaunchError(
      "MU034", log::str("rank ", rank, " could not be started: ", what, ": ", std::generic_category().message(error)));
}

}  // namespace

std::string ExitStatus::describe() const {
  if (!signal)
    return log::str("exited with code ", code, code == cluster::kUncaughtError ? " (an error that nobody caught)" : "");
  const char* name = sigabbrev_np(signal);
  return log::str("was ended by signal ", signal, name ? log::str(" (SIG", name, ")") : "");
}

Child::Child(const RankStart& start, const Program& program)
    : own_group_(start.own_group), rank_(start.rank),
      report_(start.reports ? cluster::Report::make() : cluster::Report()) {
  auto variables = start.environment;
  cluster::promise_to_print(report_);
  if (report_.descriptor() >= 0) variables.set(cluster::kReportFd, std::to_string(report_.descriptor()));
  Image image(program, variables);
  auto report = make_pipe();
  if (!report.reading) refuse(rank_, "no pipe", errno);
  pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) become(image, start, parent, report.writing.get(), report_.descriptor());
  if (pid_ < 0) refuse(rank_, "no process", errno);
  report.writing.close();
  if (own_group_) setpgid(pid_, pid_);
  pid_fd_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  int open_error = errno;
  int error = await_exec(report.reading);
  if (!error && pid_fd_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  refuse(rank_, error ? "cannot execute " + program.path : "pidfd_open (Linux 5.3 or later is needed)",
         error ? error : open_error);
}

Child::Child(int rank, pid_t adopted, cluster::Report report)
    : own_group_(true), rank_(rank), report_(std::move(report)) {
  siginfo_t ended;
  if (waitid(P_PID, static_cast<id_t>(adopted), &ended, WEXITED | WNOHANG | WNOWAIT) == 0)
    pid_fd_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, adopted, 0)));
  if (!pid_fd_) refuse(rank, "it cannot be watched", errno);
  pid_ = adopted;
}

Child::~Child() {
  if (!pid_fd_) return;
  // The process's own children may outlive it in its group. It is not reaped yet, so its id is still valid.
  signal(SIGKILL, true);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

void Child::poll() {
  if (end_) return;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  end_ = info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
}

bool Child::is_stopped() const noexcept {
  siginfo_t info{};
  return !end_ && waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

void Child::signal(int number, bool group) const noexcept {
  if (group && own_group_) kill(-pid_, number);
  else if (!end_) kill(pid_, number);
}

std::string find_program(const std::string& name, const Environment& variables) {
  auto refuse_program = [&](const std::string& reason) {
    throw ConfigError("MU031", "cannot execute '" + name + "': " + reason);
  };
  auto check = [&](const std::string& path) {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return std::generic_category().message(errno);
    if (S_ISDIR(status.st_mode)) return std::string("it is a folder");
    if (access(path.c_str(), X_OK) != 0) return std::generic_category().message(errno) + " (chmod +x it?)";
    return std::string();
  };
  if (name.empty()) refuse_program("the name is empty");
  if (name.find('/') != std::string::npos) {
    if (auto reason = check(name); !reason.empty()) refuse_program(reason);
    return name;
  }
  for (const auto& folder : split_text(variables.find("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
    std::string path = (folder.empty() ? "." : folder) + "/" + name;
    if (check(path).empty()) return path;
  }
  bool here = access(name.c_str(), F_OK) == 0;
  refuse_program(here ? "it is not in PATH; for the file in this folder write ./" + name
                      : "there is no such program in PATH");
  return "";
}

namespace {

constexpr pid_t kDismissed = 0;

/// Runs in the reaper: collects process groups until the launcher dismisses it or dies.
[[noreturn]] void keep(int from_launcher) {
  setsid();
  prctl(PR_SET_NAME, "muster-reaper");
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  // Close the launcher's descriptors, which would hide the end of its output from its readers.
  dup2(from_launcher, 0);
  close_range(1, ~0u, 0);
  std::vector<pid_t> groups;
  pid_t group = kDismissed;
  ssize_t size;
  do {
    size = read(0, &group, sizeof group);
    if (size == sizeof group && group == kDismissed) _exit(0);
    if (size == sizeof group) groups.push_back(group);
  } while (size > 0 || (size < 0 && errno == EINTR));
  for (pid_t one : groups) kill(-one, SIGKILL);
  _exit(0);
}

}  // namespace

Reaper::Reaper() {
  auto pipe = make_pipe();
  if (!pipe.reading) return;
  pid_ = fork();
  if (pid_ == 0) {
    pipe.writing.close();
    keep(pipe.reading.get());
  }
  to_reaper_ = std::move(pipe.writing);
}

Reaper::~Reaper() {
  if (pid_ < 0) return;
  watch(kDismissed);
  to_reaper_.close();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

void Reaper::watch(pid_t group) const noexcept {
  [[maybe_unused]] auto written = write(to_reaper_.get(), &group, sizeof group);
}

}  // namespace muster::launcher
