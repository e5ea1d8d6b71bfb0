#include "testing/fork_server.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "muster/base/detail/environment.h"
#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/testing/world.h"

namespace muster::testing {
namespace {

/// Variables that libraries read when they are loaded; a fork keeps the server's values.
constexpr std::string_view kReadAtLoad[] = {"LD_",     "OMP_",   "GOMP_",  "KMP_",  "MKL_",
                                            "MALLOC_", "GLIBC_", "TORCH_", "GTEST_"};

using Lines = std::vector<std::string>;

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
  Lines parts;
  while (!all.empty()) {
    const auto end = all.find('\0');
    parts.emplace_back(all.substr(0, end));
    all.remove_prefix(end + 1);
  }
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

[[noreturn]] void fail_to_start() {
  throw LaunchError(
      "MU064", formatted("no process from which test ranks are forked: {}", std::generic_category().message(errno)));
}

/// Retries after a signal: an unread answer would make the rank start twice.
pid_t receive_rank(int socket) {
  pid_t rank = -1;
  ssize_t got = -1;
  do got = ::recv(socket, &rank, sizeof(rank), 0);
  while (got < 0 && errno == EINTR);
  return got == sizeof(rank) ? rank : -1;
}

}  // namespace

void attach_to(pid_t parent, int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);
  ::dup2(output, 1);
  ::dup2(output, 2);
}

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

void start_fork_server(int& argc, char**& argv) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_to_start();
  constexpr int kBytes = kLargest;
  ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &kBytes, sizeof(kBytes));
  const pid_t owner = ::getpid(), server = ::fork();
  if (server < 0) fail_to_start();
  if (server == 0) {
    ::close(ends[0]);
    return serve(ends[1], owner, argc, argv);
  }
  ::close(ends[1]);
  client() = {ends[0], owner, read_at_load(Environment::of_process().lines())};
}

}  // namespace muster::testing
