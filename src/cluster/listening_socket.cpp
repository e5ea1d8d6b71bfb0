#include "cluster/listening_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "muster/base/error.h"

namespace muster::cluster {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr unsigned int kListens = 0x0A;  // state LISTEN in /proc/net/tcp

[[noreturn]] void refuse(int fd, int port, const std::string& address) {
  std::string reason = std::generic_category().message(errno);
  if (fd >= 0) close(fd);
  throw LaunchError("MU033", log::str("cannot listen on port ", port, address.empty() ? "" : " of " + address, ": ",
                                      reason, port ? "; give another --main-port, or 0 for a free one" : ""));
}

/// Sets SO_REUSEADDR for a fixed port, which may still be in TIME_WAIT from an earlier job. A free port is never
/// shared, so it does not get the option: with it, two sockets could be bound to one port until one listens.
void reuse_if_fixed(int fd, int port) {
  int on = port != 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
}

/// Binds to all addresses: of both families if the host has IPv6, otherwise of IPv4.
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
    if (errno == EADDRINUSE || errno == EACCES) refuse(fd, port, "");
    close(fd);
  }
  return -1;
}

int bind_to(int port, const std::string& address) {
  const auto places = resolve(address, port, AI_NUMERICHOST);
  errno = EADDRNOTAVAIL;
  if (places.empty()) refuse(-1, port, address);
  const auto& place = places.front();
  int fd = socket(place.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) reuse_if_fixed(fd, port);
  if (fd < 0 || bind(fd, place.get(), place.size) != 0) refuse(fd, port, address);
  return fd;
}

/// The address that a socket is bound to; of size 0 if there is none.
SocketAddress own_address(int fd) {
  SocketAddress address{.size = sizeof address.bytes};
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0) return {};
  return address;
}

int port_of(int fd) {
  const auto address = own_address(fd);
  auto port = address.bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&address.bytes)->sin6_port
                                                  : reinterpret_cast<const sockaddr_in*>(&address.bytes)->sin_port;
  return ntohs(port);
}

SocketAddress copied(const sockaddr* address, socklen_t size) {
  SocketAddress copy{.size = size};
  std::memcpy(&copy.bytes, address, size);
  return copy;
}

/// An address in the format of the kernel's tables: words of 8 digits, each in this machine's byte order.
std::string number_in_table(const std::string& digits) {
  unsigned char bytes[16] = {};
  std::size_t size = 0;
  for (std::size_t at = 0; at + 8 <= digits.size() && size < sizeof bytes; at += 8, size += 4) {
    const auto word = static_cast<std::uint32_t>(std::stoul(digits.substr(at, 8), nullptr, 16));
    std::memcpy(bytes + size, &word, sizeof word);
  }
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(size == 4 ? AF_INET : AF_INET6, bytes, text, sizeof text);
  return text;
}

std::vector<std::string> addresses_of_this_host() {
  std::vector<std::string> result;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return result;
  for (auto* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    if (entry->ifa_addr->sa_family == AF_INET)
      result.push_back(number_of(copied(entry->ifa_addr, sizeof(sockaddr_in))));
    if (entry->ifa_addr->sa_family == AF_INET6)
      result.push_back(number_of(copied(entry->ifa_addr, sizeof(sockaddr_in6))));
  }
  freeifaddrs(list);
  return result;
}

}  // namespace

ListeningSocket::ListeningSocket(int port, const std::string& address) {
  fd_ = address.empty() ? bind_everywhere(port) : bind_to(port, address);
  if (fd_ < 0) fd_ = bind_to(port, "0.0.0.0");
  if (listen(fd_, SOMAXCONN) != 0) refuse(std::exchange(fd_, -1), port, address);
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

std::vector<SocketAddress> resolve(const std::string& host, int port, int flags, std::string* problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list)) {
    if (problem) *problem = failed == EAI_SYSTEM ? std::generic_category().message(errno) : gai_strerror(failed);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<SocketAddress> found;
  for (const auto* entry = list; entry; entry = entry->ai_next)
    found.push_back(copied(entry->ai_addr, entry->ai_addrlen));
  return found;
}

std::string number_of(const SocketAddress& address) {
  char text[NI_MAXHOST];
  return getnameinfo(address.get(), address.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

std::string where_to_listen(const std::string& main_address) {
  if (main_address == "localhost") return kLoopback;
  if (is_loopback(main_address)) return main_address;
  const auto own = addresses_of_this_host();
  for (const auto& meant : resolve(main_address, 0)) {
    const auto number = number_of(meant);
    if (!is_loopback(number) && std::find(own.begin(), own.end(), number) != own.end()) return number;
  }
  return "";
}

std::string bound_address(int descriptor) {
  const auto number = number_of(own_address(descriptor));
  return number == "0.0.0.0" || number == "::" ? "" : number;
}

bool listens_on_loopback_alone(int port) {
  int loopback = 0, others = 0;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      char digits[33] = "";
      unsigned int listens_at = 0, state = 0;
      if (std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x", digits, &listens_at, &state) != 3)
        continue;
      if (state == kListens && static_cast<int>(listens_at) == port)
        ++(is_loopback(number_in_table(digits)) ? loopback : others);
    }
  }
  return loopback > 0 && others == 0;
}

bool is_loopback(const std::string& address) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, address.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, address.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
}

}  // namespace muster::cluster
