#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "cluster/secret.h"

namespace muster::launcher {

/// The first words of each end, in every version.
inline constexpr std::string_view kRendezvousWords = "muster rendezvous ";

/// One end of the connection between a launcher and the rendezvous. Each message is signed with the job's secret, two
/// random numbers of this connection, the direction and the message's number, so that none can be forged, replayed,
/// dropped or reflected. Nothing blocks. Movable.
class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Side { node, rendezvous };
  enum class State {
    open,
    closed,    ///< the other end closed the connection, or it broke
    stranger,  ///< received data is not of this protocol
    forged,    ///< the other end has another secret
  };

  /// Requires: a connected non-blocking socket, and a secret that is not empty.
  Channel(Descriptor socket, Side side, cluster::Secret secret);

  /// Queues a message of at most kMostBytes.
  void send(std::string_view message);
  /// Writes as much as possible without blocking.
  void flush();
  /// Reads and writes as much as possible without blocking. Then receive() must be called until it returns nothing:
  /// poll() does not know of data that has been read.
  void exchange();
  /// The next received message; nullopt if there is none yet, or never will be, see state().
  std::optional<std::string> receive();

  State state() const noexcept { return state_; }
  /// The time of the last received message, or of construction.
  Clock::time_point heard() const noexcept { return heard_; }
  /// Whether a message has been received, which proves that the other end has the secret.
  bool is_trusted() const noexcept { return received_ > 0; }
  /// Sends queued messages and lets the other end read them. Returns true once the other end has closed the connection.
  /// Requires: no more calls of the functions above.
  bool wind_down();
  /// The events that poll() must wait for.
  pollfd entry() const noexcept;

  static constexpr std::size_t kMostBytes = std::size_t{1} << 16;  // limit on a message in bytes

 private:
  void read_some();
  bool opened();
  void sign_waiting();
  cluster::Signature signature_of(bool sent, std::uint64_t number, std::string_view message) const;

  Clock::time_point heard_ = Clock::now();
  std::string input_, output_;
  std::string own_number_, other_number_;  // random numbers, one drawn by each end
  std::uint64_t received_ = 0, sent_ = 0;
  cluster::Secret secret_;
  Side side_;
  Descriptor socket_;
  State state_ = State::open;
  std::deque<std::string> waiting_;  // messages that wait for the other end's number
  bool winds_down_ = false;
};

}  // namespace muster::launcher
