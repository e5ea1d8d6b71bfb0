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
#include "cluster/signature.h"

namespace muster::launcher {

/// With these words each end begins, whatever its version.
inline constexpr std::string_view kRendezvousWords = "muster rendezvous ";

/// One end of the connection between a launcher and the rendezvous. Each message is signed with the job's secret, two
/// numbers drawn for this connection, the direction and the message's number, so that none can be forged, repeated,
/// left out or sent back. Nothing blocks. Movable.
class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Side { node, rendezvous };
  enum class State {
    open,
    closed,    ///< by the other end, or the connection broke
    stranger,  ///< what came is not of this protocol
    forged,    ///< the other end has another secret
  };

  /// Requires: a connected socket that does not block, and a secret that is given.
  Channel(Descriptor socket, Side side, cluster::Secret secret);

  /// Queues a message of at most kMostBytes.
  void send(std::string_view message);
  /// Writes what does not block.
  void flush();
  /// Reads and writes what does not block. Then receive() must be called until there is nothing more: poll() knows
  /// nothing of what has been read.
  void exchange();
  /// The next message that has come; std::nullopt: none yet, or none ever, see state().
  std::optional<std::string> receive();

  State state() const noexcept { return state_; }
  /// When a message was received last, or the channel was made.
  Clock::time_point heard() const noexcept { return heard_; }
  /// Whether a message has been received, so that the other end is known to have the secret.
  bool is_trusted() const noexcept { return received_ > 0; }
  /// Sends what is queued, and then lets the other end read it. Returns true once that has closed the connection.
  /// Requires: no more calls of the functions above.
  bool wind_down();
  /// What poll() must wait for.
  pollfd entry() const noexcept;

  static constexpr std::size_t kMostBytes = std::size_t{1} << 16;

 private:
  void read_some();
  bool opened();
  void sign_waiting();
  cluster::Signature signature_of(bool sent, std::uint64_t number, std::string_view message) const;

  Clock::time_point heard_ = Clock::now();
  std::string input_, output_;
  std::string own_number_, other_number_;  // drawn by either end
  std::uint64_t received_ = 0, sent_ = 0;
  cluster::Secret secret_;
  Side side_;
  Descriptor socket_;
  State state_ = State::open;
  std::deque<std::string> waiting_;  // until the other end's number is known
  bool winds_down_ = false;
};

}  // namespace muster::launcher
