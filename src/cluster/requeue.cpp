#include "muster/cluster/detail/requeue.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <system_error>

#include "muster/base/detail/log.h"
#include "muster/base/detail/trimmed.h"

namespace muster::cluster {
namespace {

using log::str;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::minutes(1);

std::string words_for(int error) { return std::generic_category().message(error); }

/// The signals of this process mean nothing to scontrol, and a mask of ours would keep it from ending.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output_fd) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output_fd, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, output_fd, STDERR_FILENO);
    sigset_t none, standard;
    sigemptyset(&none);
    sigfillset(&standard);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &standard);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

/// What it writes until it ends; false if that takes too long.
bool read_all(int fd, std::string& text) {
  const auto end = Clock::now() + kPatience;
  for (char part[1024];;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd wanted{fd, POLLIN, 0};
    const int ready = left > 0 ? poll(&wanted, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const auto count = read(fd, part, sizeof part);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return true;
    text.append(part, static_cast<size_t>(count));
  }
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  return status;
}

std::string outcome(pid_t child, int fd) {
  std::string said;
  if (!read_all(fd, said)) {
    kill(child, SIGKILL);
    wait_for(child);
    return "scontrol has not answered within a minute";
  }
  const int status = wait_for(child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  // Queued again, SLURM ends every process of the job, scontrol with it.
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) return "";
  return str("scontrol requeue failed: ", trimmed(said, " \t\n"));
}

}  // namespace

std::string slurm_job(const Environment& variables) {
  const auto array = variables.find("SLURM_ARRAY_JOB_ID"), task = variables.find("SLURM_ARRAY_TASK_ID");
  if (array && task) return *array + "_" + *task;
  return variables.find("SLURM_JOB_ID").value_or("");
}

std::string requeue_slurm_job(const std::string& job) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return str("no pipe for scontrol: ", words_for(errno));
  std::string name = "scontrol", word = "requeue", id = job;
  char* arguments[] = {name.data(), word.data(), id.data(), nullptr};
  pid_t child = -1;
  const SpawnSettings settings(ends[1]);
  const int error = posix_spawnp(&child, "scontrol", settings.actions(), settings.attributes(), arguments, environ);
  close(ends[1]);
  auto result = error != 0 ? str("scontrol cannot be started: ", words_for(error)) : outcome(child, ends[0]);
  close(ends[0]);
  return result;
}

}  // namespace muster::cluster
