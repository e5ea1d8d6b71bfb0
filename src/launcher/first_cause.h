#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "child.h"
#include "muster/cluster/report.h"

namespace muster::launcher {

/// A rank of this node as its supervisor sees it.
struct SeenRank {
  std::optional<End> end;
  int rank = 0;
  cluster::Standing told;
  std::string last_words = {};   ///< the error that it ended by, if nobody caught it
};

/// How the ranks of the job lie on nodes.
struct Layout {
  int nodes = 1;
  int processes = 1;  ///< ranks of each node

  int node_of(int rank) const { return rank / processes; }
};

/// Why a job fails: what is said of `rank`.
struct FirstCause {
  enum class Kind {
    failed,     ///< it ended by a failure of its own
    elsewhere,  ///< it failed, since it had lost `other`, a rank of another node
    left,       ///< it ended well while `other` still waited for it
    abandoned,  ///< an exception left its runtime, and its program kept that to itself; `other` lost it
    silent,     ///< it still runs and gave `other` no answer
  };
  std::chrono::milliseconds after{0};  ///< since the start of the job
  bool closes = false;                 ///< `rank` has closed its connections: it is about to end, or does without the others
  End end;                             ///< of the rank that failed: `rank`, or `other` where `rank` has not
  Kind kind = Kind::failed;
  std::string last_words;              ///< the error that `rank` ended by, if nobody caught it
  int other = -1;
  std::int64_t other_steps = -1;
  int rank = 0;
  bool runs = false;                   ///< `rank` had not ended
  std::int64_t steps = -1;             ///< updates that `rank` made; -1: unknown
  std::string words;                   ///< what `other` said of it
};

/// How long there has been a failure. A rank that closes its connections needs longer to end than one needs that gave no answer
/// and then does: on busy cores the end of a process takes seconds.
enum class Waited { not_yet, for_an_answer, for_an_end };

/// The first cause among the ranks of a node, or nothing where none has failed. A rank whose last error was about another
/// one is an echo of that one; until it is known what became of that one there is no cause either, unless `waited` for it.
/// Of several failures of their own a crash or a kill counts before an exit code, an exit code before an exception that nobody
/// caught (an abort or kUncaughtError; often an echo that could not say so), then the lowest rank.
std::optional<FirstCause> judge(const std::vector<SeenRank>& ranks, Waited waited);

/// The lines about it: "rank 1 exited with code 3 after 0.2 s ...", then the rank's last lines, if they are known, and its last words.
std::vector<std::string> describe(const FirstCause& cause, const Layout& layout, const std::deque<std::string>* last_lines);

/// Lines about the errors that other ranks ended by: each error once, and none that `cause` says already.
std::vector<std::string> other_words(const std::vector<SeenRank>& ranks, const std::optional<FirstCause>& cause);

}  // namespace muster::launcher
