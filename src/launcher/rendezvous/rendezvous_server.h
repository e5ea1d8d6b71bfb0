#pragma once

#include <poll.h>

#include "cluster/listening_socket.h"
#include "launcher/rendezvous/channel.h"
#include "launcher/restarts.h"
#include "muster/launcher/options.h"

namespace muster::launcher {

/// What a launcher was told about a job on several nodes.
struct NodeSetup {
  Join entry = {};
  Job job = {};  ///< plan of this node, with the address of node 0 and the secret
  RunOptions options = {};
};

/// Returns the data with which the ranks of the next round, on this many nodes, find each other.
using PrepareRound = std::function<StartRound(int nodes)>;

/// Decides when the rounds of a job on several nodes begin and end, and which nodes take part. It uses neither sockets
/// nor clocks: events are reported to it with the time, and it returns the messages to send.
///
/// A round begins once the maximum number of nodes is ready, or the minimum is and last_call_timeout has passed. The
/// last call is left out if no node was lost since the last round, because then nobody is expected. A failed rank or a
/// lost node ends the round for all nodes. A node that comes later waits for the next round. Node 0, whose launcher
/// holds the rendezvous, takes part in every round.
class RendezvousState {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// Number of a connection. Node 0 is kFirst.
  using Id = int;
  static constexpr Id kFirst = 0;

  RendezvousState(const NodeSetup& setup, PrepareRound prepare_round, Time now);

  void receive(Id id, const NodeMessage& message, Time now);
  /// The connection is lost. `why`: "its launcher closed the connection".
  void lose(Id id, const std::string& why, Time now);
  /// Requires: called when due() has come.
  void advance(Time now);
  std::optional<Time> due() const;

  /// Has the launcher of node 0 print a line.
  void notify_first(const std::string& line) { send(kFirst, Note{line}); }
  /// The messages to send, in this order.
  std::vector<std::pair<Id, RendezvousMessage>> take_messages() { return std::exchange(messages_, {}); }
  /// Whether the end of the job was sent to all nodes.
  bool finished() const noexcept { return phase_ == Phase::finished; }

 private:
  enum class Phase { joining, running, ending, stopping, finished };
  struct Node {
    bool ended = false;  ///< the node's ranks of this round have ended
    std::string host;
    bool in_round = false;
    int node_rank = 0;  ///< rank given by the user; during a round, rank in that round
    bool ready = false;
  };
  struct Cause {
    int code = 0;
    bool secondary = false;
    Id id = 0;
    std::string what;
  };

  void join(Id id, const Join& entry);
  void get_ready(Node& node, Id id);
  void fail(Id id, const Failed& failure, Time now);
  void leave(Id id, const std::string& what, Time now);
  void stop(int signal, Time now);
  void wait_for_nodes(Time now);
  bool is_complete(std::size_t ready) const;
  void announce_last_call(std::size_t ready, Time now);
  void wait_for_more(std::size_t ready, Time now);
  void start(const std::vector<Id>& members);
  void decide(Time now);
  void finish(int code, const std::string& id, const std::vector<std::string>& lines);

  std::vector<Id> ready_nodes() const;
  bool all_ended() const;
  std::string name_of(Id id) const;
  void send(Id id, RendezvousMessage message) { messages_.emplace_back(id, std::move(message)); }
  void send_all(const RendezvousMessage& message);

  std::optional<Cause> cause_;
  LaunchConfig config_;
  Time joining_since_;
  bool is_node_expected_ = true;  // true if a lost node may be replaced
  std::optional<Time> last_call_;
  bool made_steps_ = false;
  std::vector<std::pair<Id, RendezvousMessage>> messages_;
  std::map<Id, Node> nodes_;
  std::optional<Time> not_before_;
  Time note_at_;
  RunOptions options_;
  Phase phase_ = Phase::joining;
  PrepareRound prepare_round_;
  Restarts restarts_;
  Time round_began_, round_ended_;
  std::optional<Time> stop_by_;
  int stop_signal_ = 0;
};

// Why: docs/decisions/0120-rounds-of-several-nodes.md.

/// The rendezvous of the launchers of a job: a small store of its state and its nodes, in the launcher of node 0. It
/// lives and dies with that launcher. Nothing blocks: the owner polls the entries of add_to() until due(), and then
/// calls attend().
/// Thread safety: one thread.
class RendezvousServer {
 public:
  /// Listens. Throws: LaunchError (MU033).
  RendezvousServer(const NodeSetup& setup, PrepareRound prepare_round);
  /// Waits up to 2 s for the others to read their messages.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  /// The other end of the connection to this launcher itself.
  Descriptor connect_first_node();

  void add_to(std::vector<pollfd>& entries) const;
  /// When attend() must be called.
  Channel::Clock::time_point due() const { return std::min(state_.due().value_or(beat_at_), beat_at_); }
  /// Throws: exceptions of the function that prepares rounds.
  void attend();

 private:
  using Clock = Channel::Clock;
  using Id = RendezvousState::Id;
  struct Connection {
    Channel channel;
    std::string host = {};                                // numeric address
    std::optional<Clock::time_point> wound_down_by = {};  // deadline of a connection that is being closed
  };

  void accept_all();
  void attend_to(Id id, Connection& connection);
  void lose_silent(Id id, Connection& connection);
  void give_up(Id id, Connection& connection, const std::string& why);
  void turn_away(Connection& connection, const std::string& why);
  void send_messages();
  void remove_ended();

  Clock::time_point beat_at_ = Clock::now();
  std::map<Id, Connection> connections_;
  cluster::ListeningSocket listening_;
  Id next_id_ = RendezvousState::kFirst + 1;
  NodeSetup setup_;
  RendezvousState state_;
  bool full_ = false;  // the last connection found no free descriptor
  int turned_away_ = 0;
};

}  // namespace muster::launcher
