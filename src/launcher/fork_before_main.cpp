// Makes a program the fork server of its ranks. This file is linked into the program itself, not into a shared library,
// so it runs after the constructors of all libraries and before those of the program. It uses the C library only.
// Why: docs/decisions/0121-ranks-are-forked-before-main.md.
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/variables.h"
#include "fork_protocol.h"

/// Programs are linked with this name as an undefined symbol, which pulls this object out of its archive.
extern "C" {
[[gnu::visibility("hidden")]] extern const muster::launcher::ForkNote
    muster_fork_note;  // NOLINT(readability-identifier-naming): the linker's name
[[gnu::section(".note.muster"), gnu::aligned(4), gnu::used]] const muster::launcher::ForkNote muster_fork_note;
}

namespace muster::launcher {
namespace {

struct Message {
  char text[kForkBytes + 1];
  ssize_t size = -1;  ///< size of the message; -1: none, since the launcher is gone
  int descriptors[kForkDescriptors];
  int descriptor_count = 0;
};

Message receive(int socket, int flags = 0) {
  Message message;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof message.descriptors)];
  iovec part{message.text, kForkBytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  do message.size = recvmsg(socket, &header, flags | MSG_CMSG_CLOEXEC);
  while (message.size < 0 && errno == EINTR);
  if (message.size <= 0) message.size = -1;
  message.text[message.size < 0 ? 0 : message.size] = '\0';
  const cmsghdr* found = message.size < 0 ? nullptr : CMSG_FIRSTHDR(&header);
  if (!found || found->cmsg_type != SCM_RIGHTS) return message;
  message.descriptor_count = static_cast<int>((found->cmsg_len - CMSG_LEN(0)) / sizeof(int));
  std::memcpy(message.descriptors, CMSG_DATA(found), found->cmsg_len - CMSG_LEN(0));
  return message;
}

void close_all(const Message& message) {
  for (int i = 0; i < message.descriptor_count; ++i) close(message.descriptors[i]);
}

bool reply(int socket, const ForkReply& words) {
  return send(socket, &words, sizeof words, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof words);
}

/// Whether the open descriptor `number` is in this list of numbers.
bool is_listed(const char* list, int number) {
  for (char* end = nullptr; *list; list = end) {
    const long one = std::strtol(list, &end, 10);
    if (end == list) return false;
    if (one == number) return true;
  }
  return false;
}

[[gnu::format(printf, 2, 3)]] bool refuse(ForkReply& words, const char* format, ...) {
  va_list parts;
  va_start(parts, format);
  vsnprintf(words.reason, sizeof words.reason, format, parts);
  va_end(parts);
  words.kind = ForkReply::Kind::refused;
  return true;
}

/// A descriptor that a library opened would be shared by all ranks, with the device or connection behind it.
bool opened_something(int socket, const char* inherited, ForkReply& words) {
  DIR* folder = opendir("/proc/self/fd");
  if (!folder) return refuse(words, "/proc cannot be read");
  bool found = false;
  while (const dirent* entry = found ? nullptr : readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (number <= STDERR_FILENO || number == socket || number == dirfd(folder) || is_listed(inherited, number))
      continue;
    char target[160];
    const ssize_t size = readlinkat(dirfd(folder), entry->d_name, target, sizeof target);
    found = refuse(words, "one of its libraries has opened %.*s", static_cast<int>(size < 0 ? 0 : size), target);
  }
  closedir(folder);
  return found;
}

/// fork() copies only one thread, and none of the children.
bool cannot_be_copied(int socket, const char* inherited, ForkReply& words) {
  DIR* folder = opendir("/proc/self/task");
  if (!folder) return refuse(words, "/proc cannot be read");
  int threads = 0;
  while (const dirent* entry = readdir(folder)) threads += entry->d_name[0] != '.';
  closedir(folder);
  if (threads != 1) return refuse(words, "one of its libraries has started a thread");
  siginfo_t child;
  if (waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) == 0)
    return refuse(words, "one of its libraries has started a process");
  return opened_something(socket, inherited, words);
}

void set_variables(Message& message) {
  int next = STDERR_FILENO + 1;
  for (char* word = message.text; word < message.text + message.size;) {
    char* const after = word + std::strlen(word) + 1;
    char* const name = word + 1;
    if (*word == kUnsetVariable) unsetenv(name);  // NOLINT(concurrency-mt-unsafe): before threads
    if (*word == kDescriptorVariable && next < message.descriptor_count) {
      char number[16];
      std::snprintf(number, sizeof number, "%d", message.descriptors[next]);
      fcntl(message.descriptors[next++], F_SETFD, 0);
      setenv(name, number, 1);  // NOLINT(concurrency-mt-unsafe)
    }
    if (char* const sign = *word == kSetVariable ? std::strchr(name, '=') : nullptr) {
      *sign = '\0';
      setenv(name, sign + 1, 1);  // NOLINT(concurrency-mt-unsafe)
    }
    word = after;
  }
}

/// Runs in a new process, which becomes a rank once it is a child of the launcher.
void become_rank(Message& message, int start, pid_t launcher) {
  setpgid(0, 0);
  char byte;
  ssize_t size;
  do size = read(start, &byte, 1);
  while (size < 0 && errno == EINTR);
  if (size != 1) _exit(1);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  close(start);
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    dup2(message.descriptors[stream], stream);
    close(message.descriptors[stream]);
  }
  set_variables(message);
}

/// Runs in a process that then ends, so that the launcher adopts the ranks. Returns only in the ranks.
void fork_ranks(int socket, int ranks, int start, pid_t launcher) {
  for (int i = 0; i < ranks; ++i) {
    Message message = receive(socket);
    if (message.descriptor_count <= STDERR_FILENO) _exit(1);
    const pid_t rank = fork();
    if (rank == 0) {
      close(socket);
      return become_rank(message, start, launcher);
    }
    const int error = errno;
    close_all(message);
    if (rank > 0) setpgid(rank, rank);
    const bool forked = rank > 0;
    if (!reply(socket, {forked ? ForkReply::Kind::forked : ForkReply::Kind::failed, forked ? rank : error}) || !forked)
      _exit(1);
  }
  _exit(0);
}

/// Closes the standard streams: they are rank 0's and must end with it.
void leave_streams() {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) dup2(nothing, stream);
  close(nothing);
}

/// Returns only in the ranks.
void serve(int socket, pid_t launcher) {
  leave_streams();
  reply(socket, {ForkReply::Kind::ready});
  for (;;) {
    const Message round = receive(socket);
    if (round.descriptor_count != 1) _exit(0);
    const pid_t parent = fork();
    if (parent == 0) return fork_ranks(socket, std::atoi(round.text), round.descriptors[0], launcher);
    close_all(round);
    int status = 1;
    while (parent > 0 && waitpid(parent, &status, 0) < 0 && errno == EINTR) {}
    if (!reply(socket, {status == 0 ? ForkReply::Kind::adopted : ForkReply::Kind::failed})) _exit(0);
  }
}

/// Whether the launcher executed this very process, not a parent that passed its descriptors on.
bool is_from_launcher(int socket, pid_t launcher) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == launcher;
}

/// Ends the process: the launcher started it only as a fork server and will spawn the ranks, so main() must not run
/// here.
[[noreturn]] void refuse_launcher(int socket, const char* reason) {
  ForkReply refusal;
  refuse(refusal, "%s", reason);
  reply(socket, refusal);
  dprintf(STDERR_FILENO, "muster: %s: this process was started to fork ranks, and ends without running main: %s\n",
          "MU525", reason);
  _exit(1);
}

/// Runs before the constructors of the program, which have higher priority numbers.
[[gnu::constructor(101)]] void fork_before_main() {
  const char* given = std::getenv(cluster::kForkServer);
  if (!given) return;
  char* token = nullptr;
  const int socket = static_cast<int>(std::strtol(given, &token, 10));
  const pid_t launcher = getppid();
  unsetenv(cluster::kForkServer);  // NOLINT(concurrency-mt-unsafe): before main
  if (*token++ != ':' || !is_from_launcher(socket, launcher)) return;
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  const Message first = receive(socket, MSG_DONTWAIT);
  const std::size_t length = std::strlen(token);
  if (first.size < 0) refuse_launcher(socket, "the launcher's first message is missing");
  if (length == 0 || std::strncmp(first.text, token, length) != 0)
    refuse_launcher(socket, "the launcher's first message has another token");
  ForkReply refusal;
  if (cannot_be_copied(socket, first.text + length, refusal)) {
    reply(socket, refusal);
    _exit(0);
  }
  serve(socket, launcher);
}

}  // namespace
}  // namespace muster::launcher
