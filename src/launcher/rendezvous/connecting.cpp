#include "launcher/rendezvous/connecting.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "base/log.h"
#include "base/shown.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using log::str;
using std::chrono::milliseconds;

constexpr milliseconds kPause{200};     // pause between two attempts
constexpr milliseconds kAttempt{5000};  // time-out of one attempt
constexpr milliseconds kFirstLine{5000}, kNextLine{30000};

std::string text_of_errno(int error) { return std::generic_category().message(error); }

/// Repeated attempts to connect, to each address of the host in turn.
class Connecting {
 public:
  Connecting(const MainAddress& place, const RelayedSignals& signals) : place_(place), signals_(signals) {}

  std::variant<Descriptor, int> until(Clock::time_point end) {
    auto line_at = Clock::now() + kFirstLine;
    for (;;) {
      if (auto socket = try_all()) return socket;
      if (!stopped_by_) stopped_by_ = signals_.wait(kPause);
      if (stopped_by_) return stopped_by_;
      const auto now = Clock::now();
      if (now >= end) refuse();
      if (now < line_at) continue;
      line_at = now + kNextLine;
      std::fprintf(stderr, "muster: this launcher waits for that of node 0 at %s (%s)\n", name().c_str(), why_.c_str());
    }
  }

 private:
  std::string name() const { return str(place_.address, ":", place_.port); }

  [[noreturn]] void refuse() const {
    throw LaunchError("MU511", str("the launcher of node 0 was not reached at ", name(), ": ", why_,
                                   "; start it there with --node-rank 0, give all nodes its --main-address and "
                                   "--main-port, and open the port in firewalls"));
  }

  Descriptor try_all() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const auto port = std::to_string(place_.port);
    if (const int error = getaddrinfo(place_.address.c_str(), port.c_str(), &hints, &found)) {
      why_ = gai_strerror(error);
      return Descriptor();
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
    for (const auto* entry = found; entry && !stopped_by_; entry = entry->ai_next)
      if (auto socket = try_one(*entry)) return socket;
    return Descriptor();
  }

  Descriptor try_one(const addrinfo& address) {
    Descriptor one(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (one && connect(one.get(), address.ai_addr, address.ai_addrlen) == 0) return one;
    int error = errno;
    if (one && error == EINPROGRESS) {
      stopped_by_ = signals_.wait(kAttempt, {{one.get(), POLLOUT, 0}});
      pollfd entry{one.get(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (poll(&entry, 1, 0) != 1) error = ETIMEDOUT;
      else getsockopt(one.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0 && !stopped_by_) return one;
    }
    why_ = text_of_errno(error);
    return Descriptor();
  }

  MainAddress place_;
  const RelayedSignals& signals_;
  int stopped_by_ = 0;
  std::string why_;
};

}  // namespace

std::variant<Descriptor, int> connect_to(const MainAddress& place, milliseconds timeout,
                                         const RelayedSignals& signals) {
  return Connecting(place, signals).until(Clock::now() + timeout);
}

}  // namespace muster::launcher
