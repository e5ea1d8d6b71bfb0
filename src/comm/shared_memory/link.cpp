#include "comm/shared_memory/link.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <system_error>

#include "base/fnv.h"
#include "base/text.h"
#include "muster/base/format.h"
#include "muster/base/temporary_folder.h"

namespace muster::comm {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostDescriptors = 2, kMostText = 512;
constexpr char kWake = 'w';
constexpr const char* kSocketName = "link-";
constexpr const char* kUnnamed = "unnamed-link-";

[[noreturn]] void fail_link(const char* call) { throw std::system_error(errno, std::generic_category(), call); }

Descriptor new_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) fail_link("socket");
  return socket;
}

/// Calls `use` with a socket address for a path that may be longer than an address allows.
template <class Use>
int with_address(const fs::path& path, Use use) {
  const Descriptor folder(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return -1;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = formatted("/proc/self/fd/{}/{}", folder.get(), path.filename().string());
  name.copy(address.sun_path, sizeof(address.sun_path) - 1);
  return use(reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(sizeof(address)));
}

int connect_to(const Descriptor& socket, const fs::path& path) {
  return with_address(path, [&](const sockaddr* address, socklen_t size) {
    for (;;)
      if (const int done = ::connect(socket.get(), address, size); done == 0 || errno != EINTR) return done;
  });
}

/// The process that made the other end; nullopt if the system does not tell.
std::optional<ucred> maker_of(const Descriptor& socket) {
  ucred maker{};
  socklen_t size = sizeof maker;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &maker, &size) != 0) return std::nullopt;
  return maker;
}

/// Whether nobody listens on this socket any more. A socket only gets its name after somebody listens on it.
bool is_abandoned(const fs::path& path) {
  const Descriptor probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return probe && connect_to(probe, path) != 0 && errno == ECONNREFUSED;
}

/// Prefix of unnamed sockets of this machine and its container, where process numbers are comparable.
std::string unnamed_here() {
  struct stat numbers {};
  ::stat("/proc/self/ns/pid", &numbers);
  return kUnnamed + std::to_string(Fnv1a().add_all(boot_id()).add(numbers.st_ino).value()) + "-";
}

/// Whether the process that made the socket was killed before it gave the socket its name.
bool has_lost_its_maker(const std::string& unnamed) {
  const std::string here = unnamed_here();
  const int maker = unnamed.starts_with(here) ? std::atoi(unnamed.c_str() + here.size()) : 0;
  return maker > 0 && ::kill(maker, 0) != 0 && errno == ESRCH;
}

/// Removes sockets of ranks that were killed before they were connected.
void remove_stale_sockets(const fs::path& folder) {
  std::error_code ignored;
  for (fs::directory_iterator entry(folder, ignored), end; entry != end; entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(entry->path(), ignored);
    if ((name.starts_with(kSocketName) && is_abandoned(entry->path())) ||
        (name.starts_with(kUnnamed) && (has_lost_its_maker(name) || (!ignored && age > std::chrono::hours(1)))))
      ::unlink(entry->path().c_str());
  }
}

}  // namespace

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

std::string unnamed_socket(int maker) { return unnamed_here() + std::to_string(maker) + "-" + random_hex(8); }

std::pair<Link, Descriptor> Link::make_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_link("socketpair");
  return {Link(Descriptor(ends[0])), Descriptor(ends[1])};
}

Link Link::connect(const std::string& path) {
  Descriptor socket = new_socket();
  if (connect_to(socket, path) != 0) fail_link("connect");
  return Link(std::move(socket));
}

void Link::wake() const noexcept { ::send(socket_.get(), &kWake, 1, MSG_DONTWAIT | MSG_NOSIGNAL); }

void Link::send(const std::string& text, const std::vector<int>& descriptors, TimePoint deadline) const {
  const std::string bytes = 'm' + text;
  iovec data{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  while (::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno != EINTR && errno != EAGAIN) fail_link("sendmsg");
    if (errno == EAGAIN && !is_ready(descriptor(), POLLOUT, deadline))
      throw std::runtime_error("a rank of this host read nothing in time");
  }
}

Link::Arrival Link::take(LinkMessage& message) const noexcept {
  std::array<char, kMostText> bytes{};
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t got = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Arrival::nothing : Arrival::end;
  if (got == 0) return Arrival::end;
  if (bytes[0] == kWake) return Arrival::wake;
  message.text.assign(bytes.data() + 1, static_cast<std::size_t>(got) - 1);
  message.descriptors.clear();
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; CMSG_LEN(at + sizeof(int)) <= part->cmsg_len; at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + at, sizeof(int));
      message.descriptors.emplace_back(number);
    }
  }
  return Arrival::message;
}

LinkMessage Link::recv(TimePoint deadline) const {
  for (LinkMessage message;;) {
    const Arrival arrival = take(message);
    if (arrival == Arrival::message) return message;
    if (arrival == Arrival::end) throw std::runtime_error("a rank of this host has closed its connection");
    if (arrival == Arrival::nothing && !is_ready(descriptor(), POLLIN, deadline))
      throw std::runtime_error("a rank of this host sent nothing in time");
  }
}

bool Link::is_own_user() const noexcept {
  const auto maker = maker_of(socket_);
  return maker && maker->uid == ::geteuid();
}

Descriptor Link::watch_process() const noexcept {
  const auto maker = maker_of(socket_);
  if (!maker || maker->pid <= 0) return {};
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, maker->pid, 0)));
}

LinkListener::LinkListener(int size) : socket_(new_socket()) {
  const fs::path folder = private_folder();
  remove_stale_sockets(folder);
  // Other ranks remove sockets of that name on which nobody listens, so it gets the name only when it listens.
  const fs::path unnamed = folder / unnamed_socket(::getpid());
  path_ = (folder / formatted("{}{}-{}", kSocketName, ::getpid(), random_hex(8))).string();
  const int bound = with_address(
      unnamed, [&](const sockaddr* address, socklen_t bytes) { return ::bind(socket_.get(), address, bytes); });
  if (bound != 0) fail_link("bind");
  if (::listen(socket_.get(), size) == 0 && ::rename(unnamed.c_str(), path_.c_str()) == 0) return;
  const int error = errno;
  ::unlink(unnamed.c_str());
  throw std::system_error(error, std::generic_category(), "listen");
}

LinkListener::~LinkListener() { ::unlink(path_.c_str()); }

Link LinkListener::accept(TimePoint deadline) const {
  for (;;) {
    if (!is_ready(socket_.get(), POLLIN, deadline)) return {};
    Descriptor taken(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (taken) return Link(std::move(taken));
    if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED) fail_link("accept");
  }
}

}  // namespace muster::comm
