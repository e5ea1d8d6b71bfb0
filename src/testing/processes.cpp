#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <system_error>

#include "base/descriptor.h"
#include "base/no_std_exception.h"
#include "muster/base/detail/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/base/temporary_folder.h"
#include "muster/testing/world.h"
#include "testing/fork_server.h"

namespace muster::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kRank = "MUSTER_TEST_RANK";
constexpr const char* kWorld = "MUSTER_TEST_WORLD";  ///< variable with the world size and label of the call
constexpr const char* kStore = "MUSTER_TEST_STORE";

[[noreturn]] void run_as_rank(int rank, int size, const std::string& store,
                              const std::function<int(const ClusterEnvironment&)>& body) {
  ClusterEnvironment cluster;
  cluster.rank = cluster.local_rank = rank;
  cluster.world_size = cluster.local_world_size = size;
  cluster.job = "test";
  cluster.launcher = LauncherKind::muster;
  if (size > 1) {
    cluster.rendezvous = RendezvousKind::file;
    cluster.store_path = store;
  }
  int code = 70;
  try {
    code = body(cluster);
  } catch (const std::exception& failure) {
    std::cerr << "rank " << rank << ": " << failure.what() << std::endl;
  } catch (...) {
    std::cerr << "rank " << rank << ": " << kNoStdException << std::endl;
  }
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

/// A rank's process, the pipe it writes to, and a descriptor that becomes readable when it ends.
struct Child {
  pid_t pid = -1;
  Descriptor output, end;  ///< `end` is empty on systems without pidfd_open: a rank then ends with its pipe
  bool running = true;
};

[[noreturn]] void start_program_again(const std::vector<std::string>& arguments,
                                      const std::vector<std::string>& environment, const std::string& program,
                                      pid_t parent, int output) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())}, envp;
  for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  for (const auto& line : environment) envp.push_back(const_cast<char*>(line.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  attach_to(parent, output);
  ::execve(program.c_str(), argv.data(), envp.data());
  ::execve("/proc/self/exe", argv.data(), envp.data());  // the file may have been rebuilt meanwhile
  constexpr std::string_view kWhy = "this program could not be started again for a rank\n";
  [[maybe_unused]] const auto written = ::write(2, kWhy.data(), kWhy.size());
  ::_exit(127);
}

Child start(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw LaunchError("MU064", formatted("no pipe for a test rank: {}", std::generic_category().message(errno)));
  pid_t pid = fork_from_server(arguments, environment, ends[1]).value_or(-1);
  if (pid < 0) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const pid_t parent = ::getpid();
    pid = ::fork();
    if (pid == 0) start_program_again(arguments, environment, program, parent, ends[1]);
  }
  const int error = errno;
  ::close(ends[1]);
  Child child{pid, Descriptor(ends[0]), {}, true};
  if (pid < 0)
    throw LaunchError("MU064",
                      formatted("a test rank could not be started: {}", std::generic_category().message(error)));
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  child.end = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  return child;
}

void reap(const Child& child, RankResult& result) {
  int status = 0;
  pid_t reaped = -1;
  do reaped = ::waitpid(child.pid, &status, 0);
  while (reaped < 0 && errno == EINTR);
  if (reaped != child.pid)
    throw LaunchError("MU064",
                      formatted("nobody knows how a test rank ended: {}. Has the program waited for it itself?",
                                std::generic_category().message(errno)));
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  else result.exit_code = WEXITSTATUS(status);
}

/// Reads all that is available; false at the end.
bool drain(const Child& child, RankResult& result) {
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(child.output.get(), buffer, sizeof(buffer));
    if (got > 0) result.output.append(buffer, static_cast<std::size_t>(got));
    else if (got == 0 || errno != EINTR) return got < 0 && errno == EAGAIN;
  }
}

/// Waits until a rank has written or ended, or until the deadline.
void wait_for_any(const std::vector<Child>& children, bool killed, Clock::time_point deadline) {
  std::vector<pollfd> polled;
  for (const auto& child : children)
    for (const auto* from : {&child.output, &child.end})
      if (*from) polled.push_back({from->get(), POLLIN, 0});
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  ::poll(polled.data(), polled.size(), killed ? -1 : static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000)));
}

/// Reads what the rank has written. Returns whether it has ended.
bool read_until_end(Child& child, RankResult& result) {
  pollfd polled{child.end.get(), POLLIN, 0};
  const bool ended = child.end && ::poll(&polled, 1, 0) > 0;  // checked before the last output is read
  if (child.output && !drain(child, result)) child.output.close();
  return child.end ? ended : !child.output;
}

/// Reads the output of the ranks until the last one has ended. Later output of their children is lost.
void follow(std::vector<Child>& children, std::vector<RankResult>& results, Clock::time_point deadline) {
  bool killed = false;
  for (std::size_t running = children.size(); running > 0;) {
    wait_for_any(children, killed, deadline);
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      auto& child = children[rank];
      if (!child.running || !read_until_end(child, results[rank])) continue;
      child = {child.pid, {}, {}, false};
      --running;
    }
    if (killed || Clock::now() < deadline) continue;
    killed = true;
    for (std::size_t rank = 0; rank < children.size(); ++rank)
      if (children[rank].running) results[rank].timed_out = true, ::kill(children[rank].pid, SIGKILL);
  }
}

/// Throws: LaunchError (MU064) if the working folder is gone: MKL would end the ranks.
void require_folder() {
  std::error_code gone;
  static_cast<void>(std::filesystem::current_path(gone));
  if (gone) throw LaunchError("MU064", formatted("test ranks have no folder to run in: {}", gone.message()));
}

/// Throws: LaunchError (MU064) if the system would not report how a rank ended.
void require_waiting() {
  struct sigaction action {};
  ::sigaction(SIGCHLD, nullptr, &action);
  if (action.sa_handler == SIG_IGN || (action.sa_flags & SA_NOCLDWAIT) != 0)
    throw LaunchError("MU064",
                      "this program ignores SIGCHLD, and so would not learn how test ranks end; set it to SIG_DFL");
}

/// A temporary folder, removed with its owner.
struct Folder {
  Folder() {
    try {
      path = new_temporary_folder("muster-test");
    } catch (const LaunchError& failure) {
      throw LaunchError("MU064", formatted("no folder for a test world: {}", failure.what()));
    }
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace

std::vector<RankResult> run_processes(int size, const std::function<int(const ClusterEnvironment&)>& body,
                                      const ProcessWorldOptions& options) {
  const std::string world = formatted("{} {}", size, options.label);
  auto environment = Environment::of_process();
  if (auto rank = environment.find(kRank)) {
    if (environment.find(kWorld) != world) return std::vector<RankResult>(size);
    run_as_rank(std::stoi(*rank), size, environment.find(kStore).value_or(""), body);
  }
  if (size < 1) throw LaunchError("MU064", formatted("a world of {} ranks; at least 1 is wanted", size));
  require_folder();
  require_waiting();
  Folder folder;
  environment.set(kWorld, world);
  environment.set(kStore, (folder.path / "store").string());
  std::vector<Child> children;
  std::vector<RankResult> results(size);
  try {
    for (int rank = 0; rank < size; ++rank) {
      environment.set(kRank, std::to_string(rank));
      children.push_back(start(options.arguments, environment.lines()));
    }
  } catch (const LaunchError&) {
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      ::kill(children[rank].pid, SIGKILL);
      reap(children[rank], results[rank]);
    }
    throw;
  }
  follow(children, results, Clock::now() + options.timeout);
  for (int rank = 0; rank < size; ++rank) reap(children[rank], results[rank]);
  return results;
}

}  // namespace muster::testing
