#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>

#include "base/descriptor.h"
#include "base/text.h"
#include "muster/base/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/base/temporary_folder.h"
#include "muster/testing/world.h"

// Why: docs/decisions/0159-ranks-of-tests-are-forks.md.
namespace muster::testing {
namespace {

/// Variables that libraries read when they are loaded; a fork keeps the server's values.
constexpr std::string_view kReadAtLoad[] = {"LD_",     "OMP_",   "GOMP_",  "KMP_",  "MKL_",
                                            "MALLOC_", "GLIBC_", "TORCH_", "GTEST_"};

using Lines = std::vector<std::string>;

/// Throws: LaunchError (MU064), always, with the text of this value of errno.
[[noreturn]] void fail(std::string_view what, int error) {
  throw LaunchError("MU064", formatted("{}: {}", what, std::generic_category().message(error)));
}

Lines read_at_load(const Lines& environment) {
  Lines found;
  std::copy_if(environment.begin(), environment.end(), std::back_inserter(found), [](const std::string& line) {
    return std::any_of(std::begin(kReadAtLoad), std::end(kReadAtLoad),
                       [&](std::string_view name) { return line.starts_with(name); });
  });
  std::sort(found.begin(), found.end());
  return found;
}

/// The requesting process's end of the socket.
struct Client {
  int socket = -1;
  pid_t owner = -1;  ///< the process that may ask; its forks get no ranks from the server
  Lines read_at_load;
};

Client& client() {
  static Client one;
  return one;
}

/// Layout: the folder, the number of arguments, the arguments, then the environment.
std::string encoded(const Lines& arguments, const Lines& environment) {
  std::string all = std::filesystem::current_path().string() + '\0' + std::to_string(arguments.size()) + '\0';
  for (const auto* lines : {&arguments, &environment})
    for (const auto& line : *lines) all += line + '\0';
  return all;
}

struct Request {
  std::string folder;
  Lines arguments, environment;
  int output = -1;
};

Request decoded(std::string_view all, int output) {
  const Lines parts = split_text(all, '\0');
  const auto arguments = parts.begin() + 2, environment = arguments + std::stoi(parts[1]);
  return {parts[0], {arguments, environment}, {environment, parts.end()}, output};
}

constexpr std::size_t kLargest = std::size_t{1} << 20;  // limit on a message in bytes

/// One message and the file descriptor sent with it.
struct Message {
  explicit Message(iovec* bytes) {
    header.msg_iov = bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  msghdr header{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
};

bool send_request(int socket, std::string text, int output) {
  iovec bytes{text.data(), text.size()};
  Message message(&bytes);
  auto* right = CMSG_FIRSTHDR(&message.header);
  right->cmsg_level = SOL_SOCKET;
  right->cmsg_type = SCM_RIGHTS;
  right->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(right), &output, sizeof(int));
  return ::sendmsg(socket, &message.header, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

std::optional<Request> receive_request(int socket) {
  std::string text(kLargest, '\0');
  iovec bytes{text.data(), text.size()};
  Message message(&bytes);
  const auto got = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  const auto* right = got > 0 ? CMSG_FIRSTHDR(&message.header) : nullptr;
  if (!right) return std::nullopt;
  int output = -1;
  std::memcpy(&output, CMSG_DATA(right), sizeof(int));
  return decoded(std::string_view(text).substr(0, static_cast<std::size_t>(got)), output);
}

/// Null-terminated, as main() and the C library expect.
std::vector<char*> pointers_to(Lines& lines) {
  std::vector<char*> all;
  for (auto& line : lines) all.push_back(line.data());
  all.push_back(nullptr);
  return all;
}

/// Called in a new process: makes it end when `parent` ends, or at once if that has ended, and sends its output to
/// `output`.
void attach_to(pid_t parent, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, 1);
  ::dup2(output, 2);
}

/// Runs in the new process: sets up what starting the program would have set up.
void become(Request request, pid_t owner, pid_t between, int& argc, char**& argv) {
  while (::getppid() == between) ::sched_yield();
  attach_to(owner, request.output);
  if (::chdir(request.folder.c_str()) != 0) ::_exit(127);
  ::close(request.output);
  static Lines words, variables;  // static: they must live as long as the process
  static std::vector<char*> arguments, environment;
  words = std::move(request.arguments);
  words.insert(words.begin(), argv[0]);
  variables = std::move(request.environment);
  arguments = pointers_to(words);
  environment = pointers_to(variables);
  argc = static_cast<int>(words.size());
  argv = arguments.data();
  environ = environment.data();
}

/// Returns only in a rank. A rank is forked by a child that ends at once, so that the owner, a subreaper, becomes its
/// parent and waits for it as for any child.
void serve(int socket, pid_t owner, int& argc, char**& argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto* const rank =
      static_cast<pid_t*>(::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (rank == MAP_FAILED) ::_exit(127);
  while (auto request = receive_request(socket)) {
    *rank = -1;
    const pid_t between = ::fork();
    if (between == 0) {
      const pid_t parent = ::getpid(), child = ::fork();
      if (child == 0) {
        ::close(socket);
        return become(std::move(*request), owner, parent, argc, argv);
      }
      *rank = child;
      ::_exit(0);
    }
    ::close(request->output);
    while (between > 0 && ::waitpid(between, nullptr, 0) < 0 && errno == EINTR) {}
    const pid_t made = *rank;
    ::send(socket, &made, sizeof(made), MSG_NOSIGNAL);
  }
  ::_exit(0);
}

/// Retries after a signal: an unread answer would make the rank start twice.
pid_t receive_rank(int socket) {
  pid_t rank = -1;
  ssize_t got = -1;
  do got = ::recv(socket, &rank, sizeof(rank), 0);
  while (got < 0 && errno == EINTR);
  return got == sizeof(rank) ? rank : -1;
}

/// Forks a process with these arguments and environment as a child of this one; its output goes to `output`. nullopt
/// where no fork server can do so.
std::optional<pid_t> fork_from_server(const Lines& arguments, const Lines& environment, int output) {
  const auto& [socket, owner, at_load] = client();
  if (owner != ::getpid() || read_at_load(environment) != at_load) return std::nullopt;
  int former = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &former);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const bool asked = send_request(socket, encoded(arguments, environment), output);
  const pid_t rank = asked ? receive_rank(socket) : -1;
  ::prctl(PR_SET_CHILD_SUBREAPER, former);
  return rank > 0 ? std::optional(rank) : std::nullopt;
}

}  // namespace

void start_fork_server(int& argc, char**& argv) {
  constexpr std::string_view kNoServer = "no process from which test ranks are forked";
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) fail(kNoServer, errno);
  constexpr int kBytes = kLargest;
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  const pid_t owner = ::getpid(), server = ::fork();
  if (server < 0) fail(kNoServer, errno);
  if (server == 0) {
    ::close(ends[0]);
    return serve(ends[1], owner, argc, argv);
  }
  ::close(ends[1]);
  client() = {ends[0], owner, read_at_load(Environment::of_process().lines())};
}

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

[[noreturn]] void start_program_again(Lines arguments, Lines environment, const std::string& program, pid_t parent,
                                      int output) {
  arguments.insert(arguments.begin(), program);
  const auto argv = pointers_to(arguments), envp = pointers_to(environment);
  attach_to(parent, output);
  ::execve(program.c_str(), argv.data(), envp.data());
  ::execve("/proc/self/exe", argv.data(), envp.data());  // the file may have been rebuilt meanwhile
  constexpr std::string_view kWhy = "this program could not be started again for a rank\n";
  [[maybe_unused]] const auto written = ::write(2, kWhy.data(), kWhy.size());
  ::_exit(127);
}

Child start(const Lines& arguments, const Lines& environment) {
  auto pipe = make_pipe();
  if (!pipe.reading) fail("no pipe for a test rank", errno);
  pid_t pid = fork_from_server(arguments, environment, pipe.writing.get()).value_or(-1);
  if (pid < 0) {
    const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
    const pid_t parent = ::getpid();
    pid = ::fork();
    if (pid == 0) start_program_again(arguments, environment, program, parent, pipe.writing.get());
  }
  const int error = errno;
  pipe.writing.close();
  Child child{pid, std::move(pipe.reading), {}, true};
  if (pid < 0) fail("a test rank could not be started", error);
  ::fcntl(child.output.get(), F_SETFL, O_NONBLOCK);
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
