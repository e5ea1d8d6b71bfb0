#include "base/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "base/deadline.h"
#include "base/descriptor.h"
#include "base/log.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kMostOutput = std::size_t{1} << 20;  // limit on kept output in bytes
/// Time to wait for a killed program to end: one that hangs in the kernel never does.
constexpr milliseconds kForItsEnd{1000};

std::string words_for(int error) { return std::generic_category().message(error); }

/// Starts a program, and returns 0 or an errno. Signal actions and the signal mask, which the program would inherit,
/// are reset: a blocked signal would keep it from ending. It leads a process group, so that its children can be killed
/// with it.
int spawn(std::vector<std::string>& words, int output_fd, pid_t& child) {
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output_fd, STDERR_FILENO);
  sigset_t none, standard;
  sigemptyset(&none);
  sigfillset(&standard);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &standard);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error = posix_spawnp(&child, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

/// Takes what a pipe holds now; false at its end. It does not loop, since some programs never stop writing.
bool take(int pipe, std::string& text) {
  char part[1 << 16];
  const auto count = read(pipe, part, sizeof part);
  if (count <= 0) return count < 0 && (errno == EAGAIN || errno == EINTR);
  text.append(part, std::min(static_cast<std::size_t>(count), kMostOutput - text.size()));
  return true;
}

/// Reads until the process has ended, even if other processes keep the pipe open; false at the deadline.
bool read_until_end(int pipe, int process, Clock::time_point deadline, std::string& text) {
  pollfd wanted[] = {{pipe, POLLIN, 0}, {process, POLLIN, 0}};
  for (;;) {
    if (Clock::now() >= deadline) return false;
    const int ready = poll(wanted, 2, milliseconds_until(deadline));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    if (wanted[0].revents != 0 && !take(pipe, text)) wanted[0].fd = -1;
    if (wanted[1].revents == 0) continue;
    take(pipe, text);
    return true;
  }
}

/// Takes the exit status of a process that has ended.
void reap(pid_t child, CompletedProgram& program) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status)) program.signal = WTERMSIG(status);
  else program.exit_code = WEXITSTATUS(status);
}

}  // namespace

CompletedProgram run_program(std::vector<std::string> words, milliseconds timeout) {
  auto pipe = make_pipe();
  if (!pipe.reading) return {.problem = log::str("cannot be started: no pipe: ", words_for(errno))};
  fcntl(pipe.reading.get(), F_SETFL, O_NONBLOCK);
  pid_t child = -1;
  if (const int error = spawn(words, pipe.writing.get(), child))
    return {.is_missing = error == ENOENT, .problem = log::str("cannot be started: ", words_for(error))};
  pipe.writing.close();
  CompletedProgram program;
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, child, 0)));
  if (!process) program.problem = log::str("cannot be watched: ", words_for(errno));
  else if (!read_until_end(pipe.reading.get(), process.get(), Clock::now() + timeout, program.output))
    program.problem =
        log::str("has not answered within ", std::chrono::ceil<std::chrono::seconds>(timeout).count(), " s");
  if (!program.problem.empty()) kill(-child, SIGKILL);
  std::string nothing;
  if (program.problem.empty() || !process || read_until_end(-1, process.get(), Clock::now() + kForItsEnd, nothing))
    reap(child, program);
  return program;
}

}  // namespace muster
