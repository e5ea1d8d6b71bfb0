#pragma once

#include <poll.h>

#include "cluster/listening_socket.h"
#include "launcher/rendezvous/channel.h"
#include "launcher/rendezvous/rendezvous_server.h"
#include "launcher/supervisor.h"
#include "launcher/watch.h"

namespace muster::launcher {

// Why: docs/decisions/0120-rounds-of-several-nodes.md.

/// A launcher's part in a job on several nodes: it joins the rendezvous, learns of rounds, reports the end of its
/// ranks, and sends heartbeats. The agent of node 0 also holds the rendezvous. Between rounds await_round() waits;
/// while ranks run, their Watch polls the entries of add_to() until due(), and then calls attend().
/// Thread safety: one thread.
class NodeAgent {
 public:
  /// The result of a wait: a round, or the exit code of the launcher.
  using Next = std::variant<StartRound, int>;

  /// Listens on node 0. Throws: LaunchError (MU033). `signals`: borrowed.
  NodeAgent(const NodeSetup& setup, const RelayedSignals& signals);
  /// On node 0, waits up to 2 s for the others to read their messages.
  ~NodeAgent() = default;
  NodeAgent(const NodeAgent&) = delete;
  NodeAgent& operator=(const NodeAgent&) = delete;

  /// Gets ready for the next round and waits for it. Prints messages of the rendezvous meanwhile.
  /// Throws: LaunchError if the rendezvous is not reached (MU511), has another secret (MU512) or is lost (MU515), if it
  /// refuses this launcher (MU513), or if too few nodes came (MU514).
  Next await_round();
  /// The socket of the current round's store on the node of rank 0; an empty one on other nodes.
  cluster::ListeningSocket take_store() { return std::move(store_); }
  /// Announces that the launcher is about to end, with the reason `why`. If node 0 has stopped the job, it waits for
  /// the others until ranks have had time to save their state, or until another signal.
  void leave(const std::string& why);

  void add_to(std::vector<pollfd>& entries) const;
  Channel::Clock::time_point due() const;
  void attend();
  /// Reports the root cause among this node's ranks, and ends all of them if the round is over.
  void follow(Supervisor& supervisor);
  /// Reports that all ranks of this node have ended; `stopped_by`: the signal that this launcher received, or 0.
  void report_end(const Supervisor& supervisor, int stopped_by);
  /// Called when the launcher was told to stop. On node 0, stops the job.
  void stop(int signal);
  /// The next signal with which node 0 stopped the job, or 0.
  int next_signal() { return std::exchange(signal_, 0); }
  /// Lines for the launcher to print.
  std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }

 private:
  using Clock = Channel::Clock;

  void await_others();
  int connect();
  void handle(const RendezvousMessage& message);
  void check_channel();
  void send(const NodeMessage& message);
  StartRound prepare_round(int nodes);
  void print_lines();
  [[noreturn]] void refuse() const;

  Clock::time_point beat_at_ = Clock::now();
  std::optional<Clock::time_point> ends_round_at_;  // time to end ranks that have not failed by then
  std::optional<Finish> finish_;
  std::vector<std::string> lines_;
  std::string lost_;       // why the rendezvous was lost
  bool reported_ = false;  // the cause of this round was reported
  std::optional<StartRound> round_;
  NodeSetup setup_;
  int signal_ = 0;
  const RelayedSignals* signals_;
  bool stops_job_ = false;
  cluster::ListeningSocket store_;
  std::unique_ptr<RendezvousServer> server_;
  std::optional<Channel> channel_;  // declared after the server, which waits for its end
};

}  // namespace muster::launcher
