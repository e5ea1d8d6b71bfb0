#pragma once

#include <deque>

#include "child.h"
#include "cluster/report.h"

namespace muster::launcher {

/// A rank of this node as seen by its supervisor.
struct RankSnapshot {
  std::optional<ExitStatus> end;
  int rank = 0;
  cluster::RankStatus reported;
  std::string error_message = {};  ///< uncaught error that ended it, if any
  bool is_stopped = false;         ///< stopped by a signal: it does nothing until SIGCONT
};

/// The placement of the job's ranks on nodes.
struct NodeLayout {
  int nodes = 1;
  int ranks_per_node = 1;

  int node_of(int rank) const { return rank / ranks_per_node; }
};

/// The root cause of a job's failure. `kind` describes what happened to `rank`.
struct RootCause {
  enum class Kind {
    failed,     ///< it failed by itself
    elsewhere,  ///< it failed because it had lost `other`, a rank of another node
    left,       ///< it ended normally while `other` still waited for it
    abandoned,  ///< an exception left its runtime, and its program did not report that; `other` lost it
    silent,     ///< it still runs and did not respond to `other`
    stopped,    ///< a signal has stopped it, and all others ended normally, `other` after it had lost it
  };
  std::chrono::milliseconds after{0};  ///< time since the start of the job
  bool closed_connections = false;     ///< `rank` has closed its connections: it is about to end, or continues alone
  ExitStatus end;                      ///< end of the rank `ended_rank`, which failed
  int ended_rank = 0;                  ///< `rank`, `other`, or a rank that had lost `other`
  Kind kind = Kind::failed;
  std::string error_message;  ///< uncaught error that ended `rank`, if any
  int other = -1;
  std::int64_t other_steps = -1;
  int rank = 0;
  bool runs = false;        ///< `rank` had not ended
  std::int64_t steps = -1;  ///< number of updates that `rank` made; -1: unknown
  std::string reason;       ///< error that `other` reported about `rank`
};

/// How long the supervisor has waited since it saw the failure. A rank that has closed its connections gets more time
/// to end than an unresponsive rank gets to respond: on busy cores the end of a process takes seconds.
enum class WaitedFor { nothing, answer, end };

/// The root cause among the ranks of a node; nullopt if none has failed. A rank whose last error is about another rank
/// is a secondary failure. There is no root cause until the state of that other rank is known, or until `waited` is
/// long enough.
/// Among several failures that are not secondary, a crash or a kill precedes an exit code, and an exit code precedes an
/// uncaught exception (an abort or kUncaughtError; often a secondary one that was not reported as such); after that the
/// lowest rank comes first.
std::optional<RootCause> find_root_cause(const std::vector<RankSnapshot>& ranks, WaitedFor waited);

/// A stopped rank that another one has lost, if all ranks of the node that have not ended are stopped: otherwise the
/// job would never end. nullopt if there is none.
std::optional<RootCause> find_stopped_rank(const std::vector<RankSnapshot>& ranks);

/// A line about a rank that still runs while all others of the node have ended normally, one of them after it had lost
/// that rank; empty if there is none. The rank may hang, or do work that nobody waits for, so the job is not ended.
std::string describe_last_rank(const std::vector<RankSnapshot>& ranks, const NodeLayout& layout);

/// What happened, in one line, without the fate of the other ranks and without a final full stop.
std::string headline(const RootCause& cause, const NodeLayout& layout);

/// The lines of the message about the cause: "rank 1 exited with code 3 after 0.2 s ...", then the rank's last lines,
/// if known, and its error message.
std::vector<std::string> describe(const RootCause& cause, const NodeLayout& layout,
                                  const std::deque<std::string>* last_lines);

/// Lines about the uncaught errors that ended other ranks: each message once, except the one in `cause`.
std::vector<std::string> other_errors(const std::vector<RankSnapshot>& ranks, const std::optional<RootCause>& cause);

}  // namespace muster::launcher
