#pragma once

// The transport of transports.md.
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <muster/comm/transport.h>

namespace sockets {

using muster::comm::Frame, muster::comm::TimePoint, muster::comm::TransportFailure;
using Kind = TransportFailure::Kind;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using Bytes = std::vector<std::byte>;
using Clock = TimePoint::clock;

/// Stands before the bytes of each message.
struct Head {
  enum What : uint32_t { first_channel, second_channel, frame, cause };
  uint32_t what;
  uint32_t bytes;
};

class Receive;

/// The other end of a socket.
struct Peer {
  int socket = -1;
  std::deque<Bytes> out;             // what the socket has not taken
  std::size_t written = 0;           // of the first of them
  uint64_t queued = 0, sent = 0;     // messages
  Bytes in = Bytes(sizeof(Head));    // the message that arrives
  std::size_t read = 0;              // of it
  std::deque<Frame> frames;          // that nobody has taken
  std::optional<std::string> cause;  // it has ended the group
  std::string lost;                  // why nothing more comes
  struct Channel {
    std::deque<Receive*> receives;  // in the order of their blocks
    std::deque<Bytes> early;        // blocks without a receive
  };
  std::array<Channel, 2> channels;
};

/// A socket to each rank, all of them used by the thread that calls. Every byte is copied once on either side: a
/// transport for speed sends and receives in place.
class SocketTransport final : public muster::comm::Transport {
 public:
  /// `sockets`: connected ones, that at `rank` is -1. Without a store there are no parts of the group.
  SocketTransport(int rank, const std::vector<int>& sockets, StorePtr store = nullptr,
                  std::chrono::milliseconds timeout = std::chrono::minutes(1))
      : rank_(rank), store_(std::move(store)), timeout_(timeout), peers_(sockets.size()) {
    for (std::size_t peer = 0; peer < sockets.size(); ++peer) peers_[peer].socket = sockets[peer];
  }
  ~SocketTransport() override { SocketTransport::close(); }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(peers_.size()); }
  void send_frame(int to, const Frame& frame, TimePoint /*deadline*/) override {
    queue(to, Head::frame, frame.bytes.data(), frame.bytes.size());
  }
  void recv_frame(int from, Frame& frame, TimePoint deadline) override {
    auto& frames = peers_.at(from).frames;
    wait(from, deadline, [&] { return !frames.empty(); });
    frame = frames.front();
    frames.pop_front();
  }
  Request send(int to, const void* data, std::size_t bytes, int channel) override;
  Request recv(int from, void* data, std::size_t bytes, int channel) override;
  void abort(const std::string& cause) noexcept override;
  void close() noexcept override;
  std::unique_ptr<Transport> split(const std::vector<int>& ranks, const std::string& name) override;

 private:
  friend class Receive;
  friend class Sent;

  uint64_t queue(int to, Head::What what, const void* data, std::size_t bytes);
  template <class Ready>
  void wait(int peer, TimePoint deadline, Ready ready);
  std::vector<pollfd> move();
  void write(Peer& peer);
  void read(Peer& peer);
  void take(Peer& peer, const Head& head);

  const int rank_;
  const StorePtr store_;
  const std::chrono::milliseconds timeout_;  // of connecting
  std::mutex mutex_;                         // of all below: abort() comes from other threads
  std::vector<Peer> peers_;
  std::optional<std::string> aborted_;
};

class Receive final : public muster::comm::Transport::Transfer {
 public:
  Receive(SocketTransport& transport, int from, std::byte* data, std::size_t bytes, int channel)
      : transport_(transport), from_(from), data_(data), bytes_(bytes), channel_(channel) {}
  ~Receive() override {
    std::lock_guard lock(transport_.mutex_);
    std::erase(transport_.peers_[from_].channels.at(channel_).receives, this);
  }
  void wait(TimePoint deadline) override {
    transport_.wait(from_, deadline, [this] {
      if (is_other_) throw TransportFailure{Kind::closed, from_, "a block of another size came"};
      return done_;
    });
  }
  void fill(const std::byte* from, std::size_t bytes) {
    is_other_ = bytes != bytes_;  // ranks disagree, and frames will tell them: nothing but this transfer fails
    if (!is_other_) std::memcpy(data_, from, bytes);
    done_ = true;
  }

 private:
  SocketTransport& transport_;
  const int from_;
  std::byte* const data_;
  const std::size_t bytes_;
  const int channel_;
  bool done_ = false, is_other_ = false;
};

/// A send, which the socket has taken when `sent` has come so far.
class Sent final : public muster::comm::Transport::Transfer {
 public:
  Sent(SocketTransport& transport, int to, uint64_t number) : transport_(transport), to_(to), number_(number) {}
  void wait(TimePoint deadline) override {
    transport_.wait(to_, deadline, [this] { return transport_.peers_[to_].sent >= number_; });
  }

 private:
  SocketTransport& transport_;
  const int to_;
  const uint64_t number_;
};

template <class Ready>
void SocketTransport::wait(int peer, TimePoint deadline, Ready ready) {
  for (;;) {
    std::vector<pollfd> sockets;
    {
      std::lock_guard lock(mutex_);
      if (aborted_) throw TransportFailure{Kind::aborted, -1, *aborted_};
      sockets = move();  // of all ranks, whichever is waited for
      if (ready()) return;
      const auto& other = peers_[peer];
      if (other.cause) throw TransportFailure{Kind::aborted, peer, *other.cause};
      if (!other.lost.empty()) throw TransportFailure{Kind::closed, peer, other.lost};
      if (Clock::now() >= deadline) throw TransportFailure{Kind::timeout, peer, ""};
    }
    ::poll(sockets.data(), sockets.size(), 10);  // not longer: abort() wakes nobody up
  }
}

inline uint64_t SocketTransport::queue(int to, Head::What what, const void* data, std::size_t bytes) {
  const Head head{what, static_cast<uint32_t>(bytes)};
  Bytes message(sizeof head + bytes);
  std::memcpy(message.data(), &head, sizeof head);
  std::memcpy(message.data() + sizeof head, data, bytes);
  std::lock_guard lock(mutex_);
  if (aborted_ && what != Head::cause) throw TransportFailure{Kind::aborted, -1, *aborted_};
  Peer& peer = peers_.at(to);
  peer.out.push_back(std::move(message));
  write(peer);
  return ++peer.queued;
}

/// Moves what can be moved now. Returns what to wait for.
inline std::vector<pollfd> SocketTransport::move() {
  std::vector<pollfd> sockets;
  for (auto& peer : peers_) {
    if (peer.socket < 0) continue;
    write(peer);
    read(peer);
    const auto events = static_cast<short>(peer.out.empty() ? POLLIN : POLLIN | POLLOUT);
    if (peer.lost.empty()) sockets.push_back({peer.socket, events, 0});
  }
  return sockets;
}

inline void SocketTransport::write(Peer& peer) {
  while (!peer.out.empty() && peer.lost.empty()) {
    const auto& first = peer.out.front();
    const auto bytes =
        ::send(peer.socket, first.data() + peer.written, first.size() - peer.written, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes < 0) return peer.out.clear();  // the peer has gone, and reading says so once all that it sent is there
    peer.written += static_cast<std::size_t>(bytes);
    if (peer.written < first.size()) continue;
    peer.out.pop_front();
    peer.written = 0;
    ++peer.sent;
  }
}

inline void SocketTransport::read(Peer& peer) {
  while (peer.lost.empty()) {
    const auto bytes = ::recv(peer.socket, peer.in.data() + peer.read, peer.in.size() - peer.read, MSG_DONTWAIT);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (bytes < 0) peer.lost = std::system_category().message(errno);
    if (bytes == 0) peer.lost = "it closed its socket";
    if (bytes <= 0) return;
    peer.read += static_cast<std::size_t>(bytes);
    if (peer.read < peer.in.size()) continue;
    Head head{};
    std::memcpy(&head, peer.in.data(), sizeof head);
    if (head.what > Head::cause || head.bytes > muster::comm::kMaxBlockBytes) {
      peer.lost = "it sent what is not a message of this transport";
    } else if (peer.in.size() < sizeof head + head.bytes) {
      peer.in.resize(sizeof head + head.bytes);
    } else {
      take(peer, head);
      peer.in.resize(sizeof head);
      peer.read = 0;
    }
  }
}

/// A whole message has come.
inline void SocketTransport::take(Peer& peer, const Head& head) {
  const auto* data = peer.in.data() + sizeof head;
  if (head.what == Head::cause) {
    peer.cause.emplace(reinterpret_cast<const char*>(data), head.bytes);
  } else if (head.what == Head::frame) {
    std::copy_n(data, std::min<std::size_t>(head.bytes, muster::comm::kFrameBytes),
                peer.frames.emplace_back().bytes.begin());
  } else if (auto& channel = peer.channels.at(head.what); channel.receives.empty()) {
    channel.early.emplace_back(data, data + head.bytes);
  } else {
    channel.receives.front()->fill(data, head.bytes);
    channel.receives.pop_front();
  }
}

inline muster::comm::Transport::Request SocketTransport::send(int to, const void* data, std::size_t bytes,
                                                              int channel) {
  return std::make_unique<Sent>(*this, to, queue(to, static_cast<Head::What>(channel), data, bytes));
}

inline muster::comm::Transport::Request SocketTransport::recv(int from, void* data, std::size_t bytes, int channel) {
  auto block = std::make_unique<Receive>(*this, from, static_cast<std::byte*>(data), bytes, channel);
  std::lock_guard lock(mutex_);
  if (aborted_) throw TransportFailure{Kind::aborted, -1, *aborted_};
  auto& [receives, early] = peers_.at(from).channels.at(channel);
  if (early.empty()) {
    receives.push_back(block.get());
  } else {
    block->fill(early.front().data(), early.front().size());
    early.pop_front();
  }
  return block;
}

inline void SocketTransport::abort(const std::string& cause) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) return;
    aborted_ = cause;
  }
  for (int to = 0; to < size(); ++to)
    if (to != rank_) queue(to, Head::cause, cause.data(), std::min<std::size_t>(cause.size(), 1000));
}

inline void SocketTransport::close() noexcept {
  const auto until = Clock::now() + std::chrono::seconds(1);
  const auto is_written = [](const Peer& peer) { return peer.out.empty() || !peer.lost.empty(); };
  std::unique_lock lock(mutex_);
  for (auto sockets = move(); !std::all_of(peers_.begin(), peers_.end(), is_written) && Clock::now() < until;
       sockets = move()) {
    lock.unlock();
    ::poll(sockets.data(), sockets.size(), 10);
    lock.lock();
  }
  if (!aborted_) aborted_ = "the group is closed";
  for (auto& peer : peers_) {
    if (peer.socket >= 0) ::close(peer.socket);
    peer.socket = -1;
    peer.lost = "closed here";
  }
}

/// Throws if a call of the system has failed.
inline int checked(int result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::system_category(), call);
  return result;
}

/// The address of a socket that listens: the system chooses a name for it that is in no folder.
inline sockaddr_un listen_at(int socket, int ranks, socklen_t& length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  checked(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address.sun_family), "bind");
  length = sizeof address;
  checked(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), "getsockname");
  checked(::listen(socket, ranks), "listen");
  return address;
}

/// A socket to each other rank: the store says where each listens, and each calls those before it.
inline std::vector<int> sockets_to_all(c10d::Store& store, const std::string& name, int rank, int size,
                                       std::chrono::milliseconds timeout) {
  const timeval limit{timeout.count() / 1000, timeout.count() % 1000 * 1000};
  std::vector<int> all(static_cast<std::size_t>(size), -1);
  const int listener = checked(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  ::setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);  // of accept()
  socklen_t length = 0;
  const auto own = listen_at(listener, size, length);
  const auto* begin = reinterpret_cast<const uint8_t*>(&own);
  store.set(name + "/" + std::to_string(rank), std::vector<uint8_t>(begin, begin + length));
  for (int peer = 0; peer < rank; ++peer) {
    const auto place = store.get(name + "/" + std::to_string(peer));
    const int socket = all.at(peer) = checked(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    const auto* address = reinterpret_cast<const sockaddr*>(place.data());
    checked(::connect(socket, address, static_cast<socklen_t>(place.size())), "connect");
    checked(static_cast<int>(::send(socket, &rank, sizeof rank, MSG_NOSIGNAL)), "send");
  }
  for (int waiting = size - rank - 1; waiting > 0; --waiting) {
    const int socket = checked(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC), "accept");
    int peer = -1;
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    checked(static_cast<int>(::recv(socket, &peer, sizeof peer, MSG_WAITALL)), "recv");
    all.at(peer) = socket;
  }
  ::close(listener);
  return all;
}

/// The transport of the group of that name.
inline std::unique_ptr<muster::comm::Transport> connect(const StorePtr& store, const std::string& name, int rank,
                                                        int size, std::chrono::milliseconds timeout) {
  return std::make_unique<SocketTransport>(rank, sockets_to_all(*store, name, rank, size, timeout), store, timeout);
}

inline std::unique_ptr<muster::comm::Transport> SocketTransport::split(const std::vector<int>& ranks,
                                                                       const std::string& name) {
  if (!store_) throw std::runtime_error("these sockets have no store by which parts of the ranks could connect");
  const auto own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  return connect(store_, name, static_cast<int>(own), static_cast<int>(ranks.size()), timeout_);
}

}  // namespace sockets
