#include "root_cause.h"

#include <tuple>

#include "base/log.h"
#include "base/text.h"

namespace muster::launcher {
namespace {

using log::str;
using Ranks = std::vector<RankSnapshot>;
using Kind = RootCause::Kind;

bool has_failed(const RankSnapshot& rank) { return rank.end && rank.end->failed(); }

bool is_secondary(const RankSnapshot& rank) {
  return rank.reported.lost_rank >= 0 && rank.reported.lost_rank != rank.rank;
}

const RankSnapshot* find(const Ranks& ranks, int rank) {
  auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankSnapshot& one) { return one.rank == rank; });
  return found == ranks.end() ? nullptr : &*found;
}

const RankSnapshot& likeliest(const std::vector<const RankSnapshot*>& failed) {
  auto order = [](const RankSnapshot* one) {
    const bool uncaught = one->end->signal == SIGABRT || one->end->exit_code() == cluster::kUncaughtError;
    return std::tuple(uncaught ? 2 : one->end->signal ? 0 : 1, one->rank);
  };
  return **std::min_element(failed.begin(), failed.end(), [&](auto* a, auto* b) { return order(a) < order(b); });
}

RootCause root_cause_of(const RankSnapshot& rank) {
  return {.end = rank.end.value_or(ExitStatus{}),
          .ended_rank = rank.rank,
          .error_message = rank.error_message,
          .rank = rank.rank,
          .runs = !rank.end,
          .steps = rank.reported.steps,
          .reason = {}};
}

/// The end of a chain of ranks, each of which reported the loss of the next one.
struct LostRankChain {
  const RankSnapshot* reporter;  ///< last rank that lost another
  const RankSnapshot* lost;      ///< rank that it lost; nullptr: a rank of another node
  bool is_cycle = false;         ///< each lost the other; the reporter was first
};

LostRankChain follow(const Ranks& ranks, const RankSnapshot& start) {
  std::vector<const RankSnapshot*> passed{&start};
  for (;;) {
    const RankSnapshot* lost = find(ranks, passed.back()->reported.lost_rank);
    if (!lost || !is_secondary(*lost)) return {passed.back(), lost};
    auto again = std::find(passed.begin(), passed.end(), lost);
    if (again == passed.end()) {
      passed.push_back(lost);
      continue;
    }
    auto first = *std::min_element(again, passed.end(),
                                   [](auto* a, auto* b) { return a->reported.lost_at < b->reported.lost_at; });
    return {first, find(ranks, first->reported.lost_rank), true};
  }
}

/// The cause behind a rank that failed only because it lost another; nullopt if ranks lost each other.
std::optional<RootCause> trace(const Ranks& ranks, const RankSnapshot& secondary) {
  const LostRankChain chain = follow(ranks, secondary);
  const RankSnapshot& failed = has_failed(*chain.reporter) ? *chain.reporter : secondary;
  auto cause = root_cause_of(chain.lost ? *chain.lost : *chain.reporter);
  cause.end = *failed.end;
  cause.ended_rank = failed.rank;
  cause.other = chain.lost ? chain.reporter->rank : chain.reporter->reported.lost_rank;
  cause.other_steps = chain.reporter->reported.steps;
  cause.reason = chain.reporter->reported.reason;
  cause.closed_connections = chain.lost && (chain.lost->reported.left_by_exception ||
                                            cause.reason.starts_with("MU052") || cause.reason.starts_with("MU053"));
  if (!chain.lost) cause.kind = Kind::elsewhere;
  else if (chain.is_cycle && !cause.reason.starts_with("MU051")) return std::nullopt;
  else if (chain.lost->reported.left_by_exception) cause.kind = Kind::abandoned;
  else cause.kind = chain.lost->end && !chain.is_cycle ? Kind::left : Kind::silent;
  return cause;
}

std::string in_step(std::int64_t steps) { return steps < 0 ? "" : str(", in step ", steps + 1); }

std::string name(int rank, const NodeLayout& layout) {
  return layout.nodes > 1 ? str("rank ", rank, " on node ", layout.node_of(rank)) : str("rank ", rank);
}

/// The text after a headline about the other ranks.
const char* ending(Kind kind) {
  if (kind == Kind::elsewhere) return ". All ranks of this node are ended.";
  if (kind == Kind::stopped) return ". It is killed.";
  return kind == Kind::silent ? ", and all ranks are ended." : "; all other ranks are ended.";
}

}  // namespace

std::string headline(const RootCause& cause, const NodeLayout& layout) {
  const std::string who = name(cause.rank, layout), other = cause.other < 0 ? "" : name(cause.other, layout);
  const std::string ended = str(cause.end.describe(), " after ", seconds_text(cause.after));
  const std::string rank_ended = str(name(cause.ended_rank, layout), " ", ended);
  switch (cause.kind) {
    case Kind::failed: break;
    case Kind::elsewhere:
      return str("MU035", ": ", rank_ended, in_step(cause.steps), ", since ",
                 cause.ended_rank == cause.rank ? "it" : who, " had lost ", other,
                 "; the launcher on that node names the root cause, unless that rank ended normally");
    case Kind::left:
      return str("MU038", ": ", who, " left main normally",
                 cause.steps < 0 ? "" : str(" after ", cause.steps, " steps"), " while ", other,
                 cause.other_steps < 0 ? " still communicated" : str(" was in step ", cause.other_steps + 1),
                 ": ranks made different numbers of steps; use check_trigger(), so that they leave the loop together. ",
                 rank_ended);
    case Kind::abandoned:
      return str("MU035", ": ", who, " failed", in_step(cause.steps), ": an exception left its Accelerator or Fabric",
                 cause.runs ? ", and it still runs" : ", and its program ended with code 0 all the same", "; ",
                 rank_ended);
    case Kind::stopped:
      return str("MU039", ": ", who, " is stopped by a signal", in_step(cause.steps), ": ", other,
                 " had lost it, and no other rank runs");
    case Kind::silent:
      return str("MU039", ": ", who, " did not answer", in_step(cause.steps), cause.runs ? " and still runs" : "", ": ",
                 other, " timed out waiting for it; the job ", ended);
  }
  return str("MU035", ": ", who, " ", ended, in_step(cause.steps),
             cause.end.signal == SIGKILL ? " (kill -9, or the system ran out of memory)" : "");
}

std::optional<RootCause> find_root_cause(const Ranks& ranks, WaitedFor waited) {
  std::vector<const RankSnapshot*> failed, own;
  for (const auto& rank : ranks) {
    if (!has_failed(rank)) continue;
    failed.push_back(&rank);
    if (!is_secondary(rank)) own.push_back(&rank);
  }
  if (failed.empty()) return std::nullopt;
  if (!own.empty()) return root_cause_of(likeliest(own));
  std::optional<RootCause> found;
  for (const auto* secondary : failed) {
    auto cause = trace(ranks, *secondary);
    if (!cause) continue;
    if (cause->kind == Kind::left) return cause;
    if (cause->runs && waited < (cause->closed_connections ? WaitedFor::end : WaitedFor::answer)) return std::nullopt;
    if (!found) found = cause;
  }
  return found ? found : root_cause_of(likeliest(failed));
}

std::optional<RootCause> find_stopped_rank(const Ranks& ranks) {
  if (std::any_of(ranks.begin(), ranks.end(), [](const RankSnapshot& rank) { return !rank.end && !rank.is_stopped; }))
    return std::nullopt;
  for (const auto& rank : ranks) {
    const auto* lost = rank.end ? find(ranks, rank.reported.lost_rank) : nullptr;
    if (!lost || lost->end) continue;
    auto cause = root_cause_of(*lost);
    cause.kind = Kind::stopped;
    cause.end = {0, SIGKILL};  // the launcher kills it, since it reacts to nothing else
    cause.other = rank.rank;
    cause.reason = rank.reported.reason;
    return cause;
  }
  return std::nullopt;
}

std::string describe_last_rank(const Ranks& ranks, const NodeLayout& layout) {
  const auto runs = [](const RankSnapshot& rank) { return !rank.end; };
  const auto last = std::find_if(ranks.begin(), ranks.end(), runs);
  if (std::count_if(ranks.begin(), ranks.end(), runs) != 1) return "";
  for (const auto& rank : ranks)
    if (rank.end && rank.reported.lost_rank == last->rank)
      return str("muster: ", name(last->rank, layout), " still runs; the other ranks",
                 layout.nodes > 1 ? " of this node" : "", " have ended, ", name(rank.rank, layout),
                 " after it had lost that rank (", rank.reported.reason, "). If it hangs, end the job by Ctrl-C.");
  return "";
}

std::vector<std::string> describe(const RootCause& cause, const NodeLayout& layout,
                                  const std::deque<std::string>* last_lines) {
  std::vector<std::string> result{"muster: " + headline(cause, layout) + ending(cause.kind)};
  if (cause.kind == Kind::silent || cause.kind == Kind::left || cause.kind == Kind::stopped)
    result.push_back("muster:   " + cause.reason);
  if (last_lines && !(last_lines->empty() && !cause.error_message.empty()))
    result.back() += last_lines->empty() ? " It had written nothing." : " Its last lines:";
  for (const auto& line : last_lines ? *last_lines : std::deque<std::string>()) result.push_back("muster:   " + line);
  for (const auto& line : split_text(cause.error_message, '\n')) result.push_back("muster:   " + line);
  return result;
}

std::vector<std::string> other_errors(const Ranks& ranks, const std::optional<RootCause>& cause) {
  std::vector<std::string> result, said{cause ? cause->error_message : ""};
  for (const auto& rank : ranks) {
    if (rank.error_message.empty() || std::find(said.begin(), said.end(), rank.error_message) != said.end()) continue;
    said.push_back(rank.error_message);
    result.push_back(str("muster: rank ", rank.rank, " ended by an error: ", rank.error_message));
  }
  return result;
}

}  // namespace muster::launcher
