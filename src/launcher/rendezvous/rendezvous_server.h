#pragma once

#include <poll.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/listening_socket.h"
#include "launcher/rendezvous/channel.h"
#include "launcher/rendezvous/rendezvous_state.h"

namespace muster::launcher {

// Why: docs/decisions/0120-rounds-of-several-nodes.md.

/// The rendezvous of the launchers of a job: a small store of its state and its nodes, in the launcher of node 0. It
/// lives and dies with that launcher. Nothing blocks: the owner polls the entries of add_to() for poll_timeout(), and
/// then calls attend().
/// Thread safety: one thread.
class RendezvousServer {
 public:
  struct Setup {
    std::chrono::milliseconds heartbeat_timeout{0};
    std::string main_address;
    int main_port = 0;
    cluster::Secret secret;
    RendezvousState::Setup state;
  };
  /// Listens. Throws: LaunchError (MU033).
  explicit RendezvousServer(const Setup& setup);
  /// Waits up to 2 s for the others to read their messages.
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  /// The other end of the connection to this launcher itself.
  Descriptor connect_first_node();

  void add_to(std::vector<pollfd>& entries) const;
  /// Milliseconds until attend() must be called.
  int poll_timeout() const;
  /// Throws: exceptions of Setup::state.prepare_round.
  void attend();
  /// Lines about processes that were rejected.
  std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

 private:
  using Clock = Channel::Clock;
  using Id = RendezvousState::Id;
  struct Connection {
    Channel channel;
    std::string host;                                // numeric address
    std::optional<Clock::time_point> wound_down_by;  // deadline of a connection that is being closed
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
  std::vector<std::string> lines_;
  cluster::ListeningSocket listening_;
  Id next_id_ = RendezvousState::kFirst + 1;
  Setup setup_;
  RendezvousState state_;
  bool full_ = false;  // the last connection found no free descriptor
  int turned_away_ = 0;
};

}  // namespace muster::launcher
