#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <variant>

#include "base/descriptor.h"
#include "cluster/secret.h"
#include "launcher/job.h"

/// The messages between the launchers of a job on several nodes and their rendezvous, as plain values, and the channel
/// that carries them.
namespace muster::launcher {

/// The address at which the launchers of a job meet.
struct MainAddress {
  std::string address;
  int port = 0;
};

/// How the job was launched; must be equal on all nodes.
struct LaunchConfig {
  std::string command;  ///< program and arguments, shortened
  std::string digest;   ///< keyed digest of the whole command
  int max_restarts = 0;
  std::string nodes;  ///< text of the option: "2", "1:4"
  int processes = 1;  ///< ranks on each node
};

/// A launcher's first message.
struct Join {
  std::string host = {};
  int node_rank = 0;  ///< number that the user gave
  LaunchConfig config = {};
};

/// The node is ready for the next round.
struct Ready {};

/// A rank of the node has failed; the node is about to end its ranks.
struct Failed {
  int code = 0;
  bool secondary = false;  ///< true if it had lost a rank of another node
  std::string what;        ///< cause in one line
};

/// All ranks of the node have ended.
struct Ended {
  bool made_steps = false;  ///< some rank has reported an update
};

/// The launcher is about to end.
struct Left {
  std::string why;
};

/// A heartbeat.
struct Alive {};

/// From the launcher of node 0: it was told to stop the job. To the others: they must stop, too.
struct Stop {
  int signal = 0;
};

/// The round is over; the node must end its ranks.
struct EndRound {
  bool secondary = false;  ///< the cause known so far is only the loss of a rank of another node
  std::string why;
};

/// A line to print.
struct Note {
  std::string line;
};

/// The job is over or, with an error id, this launcher may not take part in it.
struct Finish {
  int code = 0;
  std::string id;  ///< id of the error that the launcher throws; empty: none
  std::vector<std::string> lines;
};

using NodeMessage = std::variant<Join, Ready, Failed, Ended, Left, Alive, Stop>;
using RendezvousMessage = std::variant<StartRound, EndRound, Note, Finish, Alive, Stop>;

std::string encode(const NodeMessage& message);
std::string encode(const RendezvousMessage& message);
/// Throws: std::exception for a text that is not such a message.
NodeMessage decode_node_message(const std::string& text);
RendezvousMessage decode_rendezvous_message(const std::string& text);

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
