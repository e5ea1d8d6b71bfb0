#include "launcher/rendezvous/rendezvous_probe.h"

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAttemptTime{5000};  // time to connect and to receive something
constexpr milliseconds kPauseOfProbe{500};  // pause between two attempts

bool is_connected(int socket) {
  sockaddr_storage peer;
  socklen_t size = sizeof peer;
  return getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) == 0;
}

}  // namespace

void RendezvousProbe::add_to(std::vector<pollfd>& entries) const {
  if (socket_) entries.push_back({socket_.get(), POLLIN, 0});
}

void RendezvousProbe::attend() {
  if (!ended_ && !std::exchange(looked_up_, true)) {
    addresses_ = cluster::resolve(place_.address, place_.port);
    if (addresses_.empty()) end();
  }
  if (ended_) return;
  if (socket_) listen();
  else if (Clock::now() >= due_) try_next();
}

void RendezvousProbe::try_next() {
  const auto& address = addresses_[next_++ % addresses_.size()];
  due_ = Clock::now() + kAttemptTime;
  socket_ = Descriptor(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  // The result is seen when reading.
  if (socket_) static_cast<void>(connect(socket_.get(), address.get(), address.size));
  else end();
}

void RendezvousProbe::listen() {
  char bytes[kRendezvousWords.size()];
  const ssize_t size = recv(socket_.get(), bytes, sizeof bytes - words_.size(), 0);
  const bool waits = size < 0 && (errno == EAGAIN || errno == EINTR);
  if (size == 0) return end();
  if (size > 0) {
    words_.append(bytes, static_cast<std::size_t>(size));
    if (words_ == kRendezvousWords)
      throw LaunchError(
          "MU513", log::str("the launcher of node 0 at ", place_.address, ":", place_.port,
                            " holds a rendezvous of launchers, since it has --max-restarts or a range of --nodes, but "
                            "this one has neither; start all nodes with the same words, but for --node-rank"));
    if (!kRendezvousWords.starts_with(words_)) return end();
  }
  if ((size > 0 || waits) && Clock::now() < due_) return;
  if (is_connected(socket_.get())) return end();  // a store does not speak first
  socket_.close();
  due_ = Clock::now() + kPauseOfProbe;
}

void RendezvousProbe::end() {
  ended_ = true;
  socket_.close();
}

}  // namespace muster::launcher
