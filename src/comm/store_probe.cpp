#include "comm/store_probe.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if __has_include(<torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>)  // LibTorch 2.14
#include <torch/csrc/distributed/c10d/store/TCPStoreBackend.hpp>
#else
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#endif

#include "base/descriptor.h"
#include "comm/in_time.h"
#include "comm/wait_policy.h"
#include "muster/base/format.h"

namespace muster::comm {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kFirstPause(20), kLongestPause(1000);
constexpr milliseconds kPatience(10'000);  ///< time for one address if there are several
constexpr milliseconds kLastWords(500);    ///< time that a silent server has to answer a line of text
constexpr std::size_t kQuoted = 60;

struct Place {
  sockaddr_storage address{};
  socklen_t size = 0;
};

/// What was found at one address.
struct Finding {
  bool is_store = false, has_connected = false;
  std::string words = {};
};

std::string reason_of(int error) { return std::generic_category().message(error); }

/// Whether the descriptor is ready for these events before `end`.
bool is_ready(int descriptor, short events, TimePoint end) {
  for (;;) {
    pollfd waits{descriptor, events, 0};
    const auto left = std::min(left_until(end), kPatience);  // poll() takes an int
    const int ready = ::poll(&waits, 1, static_cast<int>(left.count()));
    if (ready > 0) return true;
    if (ready == 0 && Clock::now() >= end) return false;
  }
}

std::vector<Place> resolve(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int failed = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (failed) throw std::runtime_error(failed == EAI_SYSTEM ? reason_of(errno) : ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, ::freeaddrinfo);
  std::vector<Place> places;
  for (const auto* entry = list; entry; entry = entry->ai_next) {
    auto& place = places.emplace_back();
    std::memcpy(&place.address, entry->ai_addr, entry->ai_addrlen);
    place.size = entry->ai_addrlen;
  }
  return places;
}

std::string number_of(const Place& place) {
  char text[NI_MAXHOST];
  const auto* address = reinterpret_cast<const sockaddr*>(&place.address);
  return ::getnameinfo(address, place.size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

/// Returns 0, or an errno value.
int connect_to(int descriptor, const Place& place, TimePoint end) {
  if (::connect(descriptor, reinterpret_cast<const sockaddr*>(&place.address), place.size) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!is_ready(descriptor, POLLOUT, end)) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

Finding without_connection(int error) {
  if (error == ECONNREFUSED) return {.words = "nothing listens there"};
  if (error == ETIMEDOUT)
    return {.words =
                "nothing answers there: a firewall drops the packets, or a process that is stopped or busy "
                "accepts no connection"};
  return {.words = "no connection: " + reason_of(error)};
}

/// What c10d's client sends first, and what a store replies.
struct Ping {
  std::string sent, answer;
};

Ping make_ping() {
  using c10d::detail::QueryType;
  const auto bytes = [](std::uint32_t number) {
    return std::string(reinterpret_cast<const char*>(&number), sizeof number);
  };
  const auto nonce = bytes(static_cast<std::uint32_t>(::getpid()));
  const auto query = [](QueryType type) { return std::string(1, static_cast<char>(type)); };
  return {query(QueryType::VALIDATE) + bytes(c10d::detail::validationMagicNumber) + query(QueryType::PING) + nonce,
          nonce};
}

std::string first_line(std::string_view sent) {
  std::string line;
  for (const char letter : sent.substr(0, kQuoted)) {
    if (letter == '\r' || letter == '\n') break;
    line += letter >= ' ' && letter <= '~' ? letter : '?';
  }
  return line;
}

Finding stranger(std::string_view sent) {
  return {.has_connected = true, .words = formatted("another program listens there: it sent \"{}\"", first_line(sent))};
}

/// The finding for a server that has not answered. Many servers wait for a line of text and then identify themselves.
Finding silent(int descriptor) {
  char sent[kQuoted];
  ::send(descriptor, "\r\n\r\n", 4, MSG_NOSIGNAL);
  const auto size =
      is_ready(descriptor, POLLIN, Clock::now() + kLastWords) ? ::recv(descriptor, sent, sizeof sent, 0) : 0;
  if (size > 0) return stranger({sent, static_cast<std::size_t>(size)});
  return {.has_connected = true,
          .words =
              "what listens there accepts connections, but does not answer as a store: it is stopped, or "
              "another program"};
}

/// Sends the ping and reads the reply.
Finding ask(int descriptor, TimePoint end) {
  const auto ping = make_ping();
  ::send(descriptor, ping.sent.data(), ping.sent.size(), MSG_NOSIGNAL);
  std::string sent;
  while (sent.size() < ping.answer.size() || !sent.starts_with(ping.answer)) {
    if (!is_ready(descriptor, POLLIN, end)) return sent.empty() ? silent(descriptor) : stranger(sent);
    char part[kQuoted];
    const auto size = ::recv(descriptor, part, sizeof part, 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size <= 0 && sent.empty())
      return {.has_connected = true,
              .words = "what listens there closed the connection without an answer: it is another program, or ends"};
    if (size <= 0) return stranger(sent);
    sent.append(part, static_cast<std::size_t>(size));
    if (!ping.answer.starts_with(sent) && !sent.starts_with(ping.answer)) return stranger(sent);
  }
  return {.is_store = true};
}

Finding visit(const Place& place, TimePoint end) {
  const Descriptor socket(::socket(place.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return without_connection(errno);
  if (const int error = connect_to(socket.get(), place, end)) return without_connection(error);
  return ask(socket.get(), end);
}

}  // namespace

StoreProbe::StoreProbe(std::string address, int port, milliseconds timeout)
    : address_(std::move(address)), port_(port), end_(Clock::now() + timeout) {}

std::string StoreProbe::wait() {
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    std::vector<Place> places;
    Finding best;
    try {
      places = call_in_time(left_until(end_), [address = address_, port = port_] { return resolve(address, port); });
    } catch (const std::exception& failure) {
      best.words = formatted("the name '{}' does not resolve: {}", address_, failure.what());
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const bool is_last = i + 1 == places.size();
      auto finding = visit(places[i], is_last ? end_ : std::min(end_, Clock::now() + kPatience));
      if (finding.is_store) return number_of(places[i]);
      if (finding.has_connected || !best.has_connected) best = std::move(finding);
    }
    note(std::move(best.words));
    if (left_until(end_) < kFirstPause) throw std::runtime_error(found());
    std::this_thread::sleep_for(std::min(pause, left_until(end_) / 2));
  }
}

std::string StoreProbe::found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

void StoreProbe::note(std::string found) {
  const std::lock_guard lock(mutex_);
  found_ = std::move(found);
}

}  // namespace muster::comm
