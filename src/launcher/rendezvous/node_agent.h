#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/listening_socket.h"
#include "launcher/rendezvous/channel.h"
#include "launcher/rendezvous/connecting.h"
#include "launcher/rendezvous/message.h"
#include "launcher/rendezvous/rendezvous_server.h"
#include "launcher/supervisor.h"
#include "launcher/watch.h"

namespace muster::launcher {

/// A launcher's part in the job of several nodes: it joins the rendezvous, learns of rounds, reports what becomes of
/// its ranks, and sends heartbeats. That of node 0 holds the rendezvous itself.
/// Between rounds await_round() waits; while ranks run, their Watch polls what add_to() gives for poll_timeout(), and
/// then calls attend(). Thread safety: one thread.
class NodeAgent {
 public:
  struct Setup {
    Join entry;
    std::chrono::milliseconds heartbeat_timeout{0}, join_timeout{0}, last_call_timeout{0};
    NodeRange nodes;
    MainAddress main_address;
    cluster::Secret secret;
    std::int64_t start = 0;  ///< of the job, for the ranks of all nodes
  };
  /// What comes after a wait: a round, or the exit code of the launcher.
  using Next = std::variant<StartRound, int>;

  /// On node 0 it listens. Throws: LaunchError (MU033). `signals`: borrowed.
  NodeAgent(const Setup& setup, const RelayedSignals& signals);
  /// On node 0 it lets the others read what was sent to them, for 2 s at most.
  ~NodeAgent();
  NodeAgent(const NodeAgent&) = delete;
  NodeAgent& operator=(const NodeAgent&) = delete;

  /// Takes part in the next round, and waits for it. Prints what the rendezvous says meanwhile.
  /// Throws: LaunchError if the rendezvous is not reached (MU511), has another secret (MU512) or is lost (MU515), if it
  /// refuses this launcher (MU513), or if too few nodes came (MU514).
  Next await_round();
  /// The socket of the store of the round that has begun, on the node of rank 0; else an empty one.
  cluster::ListeningSocket take_store() { return std::move(store_); }
  /// The launcher is about to end, `why`. Where node 0 has stopped the job, it waits for the others, as long as ranks
  /// that save their state may take, or until another signal.
  void leave(const std::string& why);

  void add_to(std::vector<pollfd>& entries) const;
  int poll_timeout() const;
  void attend();
  /// Reports the root cause among this node's ranks, and ends them all if the round is over.
  void follow(Supervisor& supervisor);
  /// All ranks of this node have ended; `stopped_by`: the signal that this launcher got, or 0.
  void report_end(const Supervisor& supervisor, int stopped_by);
  /// The launcher was told to stop. On node 0 that stops the job.
  void stop(int signal);
  /// The next signal by which the job was stopped at node 0, or 0.
  int next_signal() { return std::exchange(signal_, 0); }
  /// Lines that the launcher should print.
  std::vector<std::string> take_lines();

 private:
  using Clock = Channel::Clock;

  bool is_first() const { return setup_.entry.node_rank == 0; }
  void await_others();
  int connect();
  void handle(const RendezvousMessage& message);
  void check_channel();
  void send(const NodeMessage& message);
  StartRound prepare_round(int nodes);
  int end_of_job(const Finish& finish);
  void print_lines();
  [[noreturn]] void refuse() const;

  Clock::time_point beat_at_ = Clock::now();
  std::optional<Clock::time_point> ends_round_at_;  // when the ranks are told, if they have not failed by then
  std::optional<Finish> finish_;
  std::vector<std::string> lines_;
  std::string lost_;       // why the rendezvous is gone
  bool reported_ = false;  // the cause of this round
  std::optional<StartRound> round_;
  Setup setup_;
  int signal_ = 0;
  const RelayedSignals* signals_;
  bool stops_job_ = false;
  cluster::ListeningSocket store_;
  std::unique_ptr<RendezvousServer> server_;
  std::optional<Channel> channel_;  // after the server, which waits for its end
};

}  // namespace muster::launcher
