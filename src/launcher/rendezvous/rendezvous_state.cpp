#include "launcher/rendezvous/rendezvous_state.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/quantities.h"

namespace muster::launcher {
namespace {

using log::str;
using std::chrono::milliseconds;

constexpr int kCodeOfLostNode = 1;                          // exit code of a job that has lost a node
constexpr int kCodeOfError = 2;                             // exit code of `muster` after an error
constexpr milliseconds kFirstNote{5000}, kNextNote{30000};  // times until the notes about missing nodes
constexpr milliseconds kJobStopTime{40000};                 // ranks have 30 s (kStopTime) to save their state

template <class T>
std::string two_values(const char* what, const T& first, const T& own) {
  return str(what, " is ", own, " here and ", first, " on node 0");
}

/// The first difference from the config of node 0; empty if there is none.
std::string difference(const LaunchConfig& first, const LaunchConfig& own) {
  if (first.nodes != own.nodes) return two_values("--nodes", first.nodes, own.nodes);
  if (first.processes != own.processes)
    return two_values("the number of ranks (--devices)", first.processes, own.processes);
  if (first.max_restarts != own.max_restarts) return two_values("--max-restarts", first.max_restarts, own.max_restarts);
  if (first.digest != own.digest) return two_values("the program with its arguments", first.command, own.command);
  return "";
}

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

RendezvousState::RendezvousState(Setup setup, Time now)
    : joining_since_(now), note_at_(now + kFirstNote), restarts_(setup.config.max_restarts), round_began_(now),
      round_ended_(now), setup_(std::move(setup)) {}

void RendezvousState::receive(Id id, const NodeMessage& message, Time now) {
  if (phase_ == Phase::finished) return;
  if (const auto* entry = std::get_if<Join>(&message)) join(id, *entry);
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  auto& node = found->second;
  std::visit(
      Overloaded{[&](const Ready&) { get_ready(node, id); }, [&](const Failed& failure) { fail(id, failure, now); },
                 [&](const Ended& end) {
                   node.ended = true;
                   made_steps_ |= end.made_steps;
                 },
                 [&](const Left& left) { leave(id, left.why, now); },
                 [&](const Stop& request) {
                   if (id == kFirst) stop(request.signal, now);
                 },
                 [](const auto&) {}},
      message);
  advance(now);
}

void RendezvousState::join(Id id, const Join& entry) {
  const auto refuse = [&](const std::string& why) {
    send(id, Finish{kCodeOfError, "MU513", {str("node 0 refuses this launcher: ", why)}});
  };
  if (entry.node_rank == 0 && id != kFirst)
    return refuse(
        "its node rank is 0, but that is the node of the main address, where the launchers meet; give it another one");
  if (const auto why = difference(setup_.config, entry.config); !why.empty())
    return refuse(str(why, "; start all nodes with the same words, but for --node-rank"));
  nodes_[id] = Node{.host = entry.host, .node_rank = entry.node_rank};
  send(id, Alive{});
}

void RendezvousState::get_ready(Node& node, Id id) {
  node.ready = true;
  if (node.in_round || (phase_ != Phase::running && phase_ != Phase::ending)) return;
  send(id, Note{"a round of the job runs already; this node waits for the next one"});
  send(kFirst, Note{str(name_of(id), " waits for the next round")});
}

std::vector<RendezvousState::Id> RendezvousState::ready_nodes() const {
  std::vector<Id> result;
  for (const auto& [id, node] : nodes_)
    if (node.ready) result.push_back(id);
  // Nodes of the last round precede those that waited for this one.
  std::stable_sort(result.begin(), result.end(), [&](Id a, Id b) {
    return std::pair(a != kFirst, !nodes_.at(a).in_round) < std::pair(b != kFirst, !nodes_.at(b).in_round);
  });
  return result;
}

void RendezvousState::advance(Time now) {
  if (phase_ == Phase::running && all_ended()) finish(0, "", restarts_.summary());
  if (phase_ == Phase::ending && all_ended()) decide(now);
  if (phase_ == Phase::stopping && (all_ended() || now >= *stop_by_)) finish(128 + stop_signal_, "", {});
  if (phase_ == Phase::joining) wait_for_nodes(now);
}

void RendezvousState::wait_for_nodes(Time now) {
  if (not_before_ && now < *not_before_) return;
  not_before_.reset();
  auto ready = ready_nodes();
  if (ready.size() < static_cast<std::size_t>(setup_.nodes.min) || ready.front() != kFirst)
    return wait_for_more(ready.size(), now);
  if (!last_call_) announce_last_call(ready.size(), now);
  if (now < *last_call_ && !is_complete(ready.size())) return;
  ready.resize(std::min(ready.size(), static_cast<std::size_t>(setup_.nodes.max)));
  round_began_ = now;
  start(ready);
}

/// Whether no further node is worth waiting for: all nodes of the last round are ready, and the maximum number, or
/// every known node if none is expected, is ready.
bool RendezvousState::is_complete(std::size_t ready) const {
  for (const auto& [id, node] : nodes_)
    if (node.in_round && !node.ready) return false;
  return ready >= static_cast<std::size_t>(setup_.nodes.max) || (!is_node_expected_ && ready == nodes_.size());
}

void RendezvousState::announce_last_call(std::size_t ready, Time now) {
  last_call_ = now + setup_.last_call_timeout;
  if (is_node_expected_ && ready < static_cast<std::size_t>(setup_.nodes.max))
    send_all(Note{str(counted(static_cast<std::int64_t>(ready), "node"), " of at most ", setup_.nodes.max,
                      ready == 1 ? " is" : " are", " here; the ranks start in ", seconds_text(setup_.last_call_timeout),
                      ", or once all nodes are here")});
}

void RendezvousState::wait_for_more(std::size_t ready, Time now) {
  last_call_.reset();
  const auto here = str(counted(static_cast<std::int64_t>(ready), "node"), ready == 1 ? " is" : " are", " here");
  if (now >= joining_since_ + setup_.join_timeout)
    return finish(kCodeOfError, "MU514",
                  {str(here, " after ", seconds_text(setup_.join_timeout), ", but at least ", setup_.nodes.min,
                       " are wanted; start `muster run` on the others, give a longer --join-timeout, or fewer "
                       "--nodes")});
  if (now < note_at_) return;
  note_at_ = now + kNextNote;
  send_all(Note{str(here, ", at least ", setup_.nodes.min, " are wanted; the launchers wait for up to ",
                    seconds_text(setup_.join_timeout))});
}

void RendezvousState::start(const std::vector<Id>& members) {
  auto sorted = members;
  std::stable_sort(sorted.begin(), sorted.end(), [&](Id a, Id b) {
    return std::pair(a != kFirst, nodes_.at(a).node_rank) < std::pair(b != kFirst, nodes_.at(b).node_rank);
  });
  auto round = setup_.prepare_round(static_cast<int>(sorted.size()));
  round.restarts = restarts_.count();
  for (auto& [id, node] : nodes_) node.in_round = false;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    auto& node = nodes_.at(sorted[i]);
    node.in_round = true;
    node.ready = node.ended = false;
    node.node_rank = round.node_rank = static_cast<int>(i);
    send(sorted[i], round);
  }
  for (const auto& [id, node] : nodes_)
    if (!node.in_round) send(id, Note{"the round has as many nodes as it may have; this one waits for the next"});
  phase_ = Phase::running;
  cause_.reset();
  last_call_.reset();
  is_node_expected_ = made_steps_ = false;
}

void RendezvousState::fail(Id id, const Failed& failure, Time now) {
  if (!nodes_.at(id).in_round || (phase_ != Phase::running && phase_ != Phase::ending)) return;
  if (!cause_ || (cause_->secondary && !failure.secondary))
    cause_ = Cause{failure.code, failure.secondary, id, str(name_of(id), ": ", failure.what)};
  if (phase_ != Phase::running) return;
  phase_ = Phase::ending;
  round_ended_ = now;
  for (const auto& [id, node] : nodes_)
    if (node.in_round && id != cause_->id) send(id, EndRound{cause_->secondary, cause_->what});
}

void RendezvousState::lose(Id id, const std::string& why, Time now) {
  if (!nodes_.contains(id) || phase_ == Phase::finished) return;
  leave(id, str("MU516", ": the node is lost: ", why), now);
  advance(now);
}

void RendezvousState::leave(Id id, const std::string& what, Time now) {
  const auto node = nodes_.at(id);
  const auto line = str(name_of(id), ": ", what);
  if (node.in_round && !node.ended) fail(id, {.code = kCodeOfLostNode, .secondary = false, .what = what}, now);
  nodes_.erase(id);
  if (node.in_round) is_node_expected_ = true;
  if (phase_ == Phase::joining) send(kFirst, Note{line});
  if (id == kFirst) finish(kCodeOfError, "", {line});
}

void RendezvousState::stop(int signal, Time now) {
  stop_signal_ = signal;
  if (!stop_by_) stop_by_ = now + kJobStopTime;
  const bool runs = phase_ == Phase::running || phase_ == Phase::stopping;
  if (phase_ != Phase::ending && !runs) return finish(128 + signal, "", {"the job was stopped at node 0"});
  phase_ = Phase::stopping;
  for (const auto& [id, node] : nodes_)
    if (node.in_round && !node.ended && id != kFirst) send(id, Stop{signal});
}

bool RendezvousState::all_ended() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const auto& entry) { return !entry.second.in_round || entry.second.ended; });
}

void RendezvousState::decide(Time now) {
  const Failure failure{.after = std::chrono::duration_cast<milliseconds>(round_ended_ - round_began_),
                        .made_steps = made_steps_,
                        .what = cause_->what};
  const auto wait = restarts_.next(failure);
  if (!wait) return finish(cause_->code, "", restarts_.summary());
  send_all(Note{restarts_.announcement()});
  phase_ = Phase::joining;
  joining_since_ = now;
  not_before_ = now + *wait;
  note_at_ = now + kFirstNote;
}

void RendezvousState::finish(int code, const std::string& id, const std::vector<std::string>& lines) {
  send_all(Finish{code, id, lines});
  phase_ = Phase::finished;
}

std::optional<RendezvousState::Time> RendezvousState::due() const {
  if (phase_ == Phase::stopping) return stop_by_;
  if (phase_ != Phase::joining) return std::nullopt;
  if (not_before_) return not_before_;
  return last_call_ ? *last_call_ : std::min(note_at_, joining_since_ + setup_.join_timeout);
}

std::string RendezvousState::name_of(Id id) const {
  const auto& node = nodes_.at(id);
  return str("node ", node.node_rank, " (", node.host, ")");
}

void RendezvousState::send_all(const RendezvousMessage& message) {
  for (const auto& [id, node] : nodes_) send(id, message);
}

}  // namespace muster::launcher
