#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// The messages between the launchers of a job on several nodes and their rendezvous. Plain values.
namespace muster::launcher {

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
  std::string host;
  int node_rank = 0;  ///< number that the user gave
  LaunchConfig config;
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

/// A round begins.
struct StartRound {
  std::string main_address;
  int main_port = 0;
  std::string name;  ///< name of the job in this round
  int node_rank = 0;
  int nodes = 1;
  int restarts = 0;
  std::int64_t start = 0;  ///< start of the whole job in milliseconds since 1970
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

}  // namespace muster::launcher
