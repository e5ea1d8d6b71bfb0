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
constexpr const char* kWorld = "MUSTER_TEST_WORLD";  ///< size and label of the call that the ranks belong to
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
  }
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

/// A process of ours and the pipe it writes to.
struct Child {
  pid_t pid = -1;
  int output = -1;
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
  ::execve("/proc/self/exe", argv.data(), envp.data());  // the file may have been built anew meanwhile
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
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    throw LaunchError("MU064",
                      formatted("a test rank could not be started: {}", std::generic_category().message(errno)));
  }
  return {pid, ends[0]};
}

void reap(const Child& child, RankResult& result) {
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  else result.exit_code = WEXITSTATUS(status);
}

/// Reads what there is; false at the end.
bool drain(const Child& child, RankResult& result) {
  char buffer[4096];
  ssize_t got = ::read(child.output, buffer, sizeof(buffer));
  if (got > 0) result.output.append(buffer, static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

/// Follows the pipes until the last one is closed, which is when the last rank has ended.
void follow(std::vector<Child>& children, std::vector<RankResult>& results, Clock::time_point deadline) {
  std::vector<bool> open(children.size(), true);
  bool killed = false;
  while (std::find(open.begin(), open.end(), true) != open.end()) {
    std::vector<pollfd> polled;
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < children.size(); ++rank)
      if (open[rank]) polled.push_back({children[rank].output, POLLIN, 0}), ranks.push_back(rank);
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    ::poll(polled.data(), polled.size(), killed ? -1 : static_cast<int>(std::max<int64_t>(left, 0)));
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0 || drain(children[ranks[i]], results[ranks[i]])) continue;
      open[ranks[i]] = false;
      ::close(children[ranks[i]].output);
    }
    if (killed || Clock::now() < deadline) continue;
    killed = true;
    for (std::size_t rank : ranks)
      if (open[rank]) results[rank].timed_out = true, ::kill(children[rank].pid, SIGKILL);
  }
}

/// A folder that is gone when its owner is.
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
      ::close(children[rank].output);
      reap(children[rank], results[rank]);
    }
    throw;
  }
  follow(children, results, Clock::now() + options.timeout);
  for (int rank = 0; rank < size; ++rank) reap(children[rank], results[rank]);
  return results;
}

}  // namespace muster::testing
