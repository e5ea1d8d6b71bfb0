#include "cluster/listening_socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/log.h"
#include "muster/base/error.h"

namespace muster::cluster {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr unsigned int kListens = 0x0A;  // state LISTEN in /proc/net/tcp

[[noreturn]] void refuse(int port, const std::string& address) {
  const auto reason = std::generic_category().message(errno);
  throw LaunchError("MU033", log::str("cannot listen on port ", port, address.empty() ? "" : " of " + address, ": ",
                                      reason, port ? "; give another --main-port, or 0 for a free one" : ""));
}

/// A socket bound to a numeric address; that of "::" serves both families. Empty, with the reason in errno, if that
/// fails: EAFNOSUPPORT also if the host does not allow sockets of the family.
Descriptor bound_to(int port, const std::string& address) {
  const auto places = resolve(address, port, AI_NUMERICHOST);
  errno = EADDRNOTAVAIL;
  if (places.empty()) return Descriptor();
  const auto& place = places.front();
  Descriptor one(socket(place.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!one && (errno == EACCES || errno == EPERM)) errno = EAFNOSUPPORT;
  if (!one) return one;
  // A fixed port may still be in TIME_WAIT from an earlier job. A free port is never shared, so it does not get
  // SO_REUSEADDR: with it, two sockets could be bound to one port until one listens.
  const int fixed = port != 0, off = 0;
  setsockopt(one.get(), SOL_SOCKET, SO_REUSEADDR, &fixed, sizeof fixed);
  if (place.bytes.ss_family == AF_INET6) setsockopt(one.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  return bind(one.get(), place.get(), place.size) == 0 ? std::move(one) : Descriptor();
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
  socket_ = bound_to(port, address.empty() ? "::" : address);
  const bool lacks_ipv6 = !socket_ && address.empty() && errno != EADDRINUSE && errno != EACCES;
  if (lacks_ipv6) socket_ = bound_to(port, "0.0.0.0");
  if (!socket_ || listen(socket_.get(), SOMAXCONN) != 0) refuse(port, lacks_ipv6 && !socket_ ? "0.0.0.0" : address);
  port_ = port_of(socket_.get());
}

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
