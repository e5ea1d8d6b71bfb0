#include "port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"

namespace muster::launcher {
namespace {

[[noreturn]] void refuse(int fd, int port) {
  std::string reason = std::strerror(errno);
  if (fd >= 0) close(fd);
  throw LaunchError("MU033", log::format("cannot listen on port ", port, ": ", reason,
                                         port ? "; give another --main-port, or 0 for a free one" : ""));
}

/// A port asked for by number may still be in TIME_WAIT from an earlier job; a free one is never shared, so it goes
/// without the option, with which two sockets could hold one port until either listens.
void reuse_if_fixed(int fd, int port) {
  int on = port != 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

/// All addresses of both families where the host has IPv6, else of IPv4.
int bind_everywhere(int port) {
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    int off = 0;
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    reuse_if_fixed(fd, port);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    if (errno == EADDRINUSE || errno == EACCES) refuse(fd, port);
    close(fd);
  }
  return -1;
}

int bind_ipv4(int port, in_addr_t host) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(host);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (fd >= 0) reuse_if_fixed(fd, port);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) refuse(fd, port);
  return fd;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  auto port = address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return ntohs(port);
}

}  // namespace

ListeningSocket::ListeningSocket(int port, bool loopback_only) {
  fd_ = loopback_only ? -1 : bind_everywhere(port);
  if (fd_ < 0) fd_ = bind_ipv4(port, loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (listen(fd_, SOMAXCONN) != 0) refuse(std::exchange(fd_, -1), port);
  port_ = port_of(fd_);
}

ListeningSocket::ListeningSocket(ListeningSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(std::exchange(other.port_, 0)) {}

ListeningSocket& ListeningSocket::operator=(ListeningSocket&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(port_, other.port_);
  return *this;
}

ListeningSocket::~ListeningSocket() {
  if (fd_ >= 0) close(fd_);
}

int ListeningSocket::release() noexcept { return std::exchange(fd_, -1); }

}  // namespace muster::launcher
