#include "reaper.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <vector>

namespace muster::launcher {
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
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  Descriptor from_launcher(ends[0]);
  to_reaper_ = Descriptor(ends[1]);
  pid_ = fork();
  if (pid_ == 0) {
    to_reaper_.close();
    keep(from_launcher.get());
  }
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
