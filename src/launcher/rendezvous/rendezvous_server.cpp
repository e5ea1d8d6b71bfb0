#include "launcher/rendezvous/rendezvous_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"
#include "base/text.h"
#include "muster/base/error.h"

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

constexpr milliseconds kWindDownTime{2000};  // time for the other end to read the last message
constexpr milliseconds kTimeToJoin{10000};   // time until the first message of a process that has connected
constexpr std::size_t kMostStrangers = 64;   // limit at any one time
constexpr int kMostStrangerLines = 10;       // limit on lines about strangers, so that they cannot fill the log

}  // namespace

RendezvousState::RendezvousState(const NodeSetup& setup, PrepareRound prepare_round, Time now)
    : config_(setup.entry.config), joining_since_(now), note_at_(now + kFirstNote), options_(setup.options),
      prepare_round_(std::move(prepare_round)), restarts_(setup.entry.config.max_restarts), round_began_(now),
      round_ended_(now) {}

void RendezvousState::receive(Id id, const NodeMessage& message, Time now) {
  if (phase_ == Phase::finished) return;
  if (const auto* entry = std::get_if<Join>(&message)) join(id, *entry);
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  auto& node = found->second;
  if (std::holds_alternative<Ready>(message)) get_ready(node, id);
  if (const auto* failure = std::get_if<Failed>(&message)) fail(id, *failure, now);
  if (const auto* end = std::get_if<Ended>(&message)) {
    node.ended = true;
    made_steps_ |= end->made_steps;
  }
  if (const auto* request = std::get_if<Stop>(&message); request && id == kFirst) stop(request->signal, now);
  if (const auto* left = std::get_if<Left>(&message)) leave(id, left->why, now);
  advance(now);
}

void RendezvousState::join(Id id, const Join& entry) {
  const auto refuse = [&](const std::string& why) {
    send(id, Finish{kCodeOfError, "MU513", {str("node 0 refuses this launcher: ", why)}});
  };
  if (entry.node_rank == 0 && id != kFirst)
    return refuse(
        "its node rank is 0, but that is the node of the main address, where the launchers meet; give it another one");
  if (const auto why = difference(config_, entry.config); !why.empty())
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
  if (ready.size() < static_cast<std::size_t>(options_.nodes.min) || ready.front() != kFirst)
    return wait_for_more(ready.size(), now);
  if (!last_call_) announce_last_call(ready.size(), now);
  if (now < *last_call_ && !is_complete(ready.size())) return;
  ready.resize(std::min(ready.size(), static_cast<std::size_t>(options_.nodes.max)));
  round_began_ = now;
  start(ready);
}

/// Whether no further node is worth waiting for: all nodes of the last round are ready, and the maximum number, or
/// every known node if none is expected, is ready.
bool RendezvousState::is_complete(std::size_t ready) const {
  for (const auto& [id, node] : nodes_)
    if (node.in_round && !node.ready) return false;
  return ready >= static_cast<std::size_t>(options_.nodes.max) || (!is_node_expected_ && ready == nodes_.size());
}

void RendezvousState::announce_last_call(std::size_t ready, Time now) {
  last_call_ = now + options_.last_call_timeout;
  if (is_node_expected_ && ready < static_cast<std::size_t>(options_.nodes.max))
    send_all(Note{str(counted(static_cast<std::int64_t>(ready), "node"), " of at most ", options_.nodes.max,
                      ready == 1 ? " is" : " are", " here; the ranks start in ",
                      seconds_text(options_.last_call_timeout), ", or once all nodes are here")});
}

void RendezvousState::wait_for_more(std::size_t ready, Time now) {
  last_call_.reset();
  const auto here = str(counted(static_cast<std::int64_t>(ready), "node"), ready == 1 ? " is" : " are", " here");
  if (now >= joining_since_ + options_.join_timeout)
    return finish(kCodeOfError, "MU514",
                  {str(here, " after ", seconds_text(options_.join_timeout), ", but at least ", options_.nodes.min,
                       " are wanted; start `muster run` on the others, give a longer --join-timeout, or fewer "
                       "--nodes")});
  if (now < note_at_) return;
  note_at_ = now + kNextNote;
  send_all(Note{str(here, ", at least ", options_.nodes.min, " are wanted; the launchers wait for up to ",
                    seconds_text(options_.join_timeout))});
}

void RendezvousState::start(const std::vector<Id>& members) {
  auto sorted = members;
  std::stable_sort(sorted.begin(), sorted.end(), [&](Id a, Id b) {
    return std::pair(a != kFirst, nodes_.at(a).node_rank) < std::pair(b != kFirst, nodes_.at(b).node_rank);
  });
  auto round = prepare_round_(static_cast<int>(sorted.size()));
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
  return last_call_ ? *last_call_ : std::min(note_at_, joining_since_ + options_.join_timeout);
}

std::string RendezvousState::name_of(Id id) const {
  const auto& node = nodes_.at(id);
  return str("node ", node.node_rank, " (", node.host, ")");
}

void RendezvousState::send_all(const RendezvousMessage& message) {
  for (const auto& [id, node] : nodes_) send(id, message);
}

RendezvousServer::RendezvousServer(const NodeSetup& setup, PrepareRound prepare_round)
    : listening_(setup.job.main_port, cluster::where_to_listen(setup.job.main_address)), setup_(setup),
      state_(setup, std::move(prepare_round), Clock::now()) {
  fcntl(listening_.fd(), F_SETFL, O_NONBLOCK);
}

RendezvousServer::~RendezvousServer() {
  const auto until = Clock::now() + kWindDownTime;
  for (auto& [id, connection] : connections_) connection.wound_down_by = until;
  for (remove_ended(); !connections_.empty() && Clock::now() < until; remove_ended()) {
    std::vector<pollfd> entries;
    entries.reserve(connections_.size());
    for (const auto& [id, connection] : connections_) entries.push_back(connection.channel.entry());
    poll(entries.data(), entries.size(), 50);
  }
}

Descriptor RendezvousServer::connect_first_node() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    throw LaunchError("MU033", str("no pair of sockets can be had: ", std::generic_category().message(errno)));
  connections_.emplace(RendezvousState::kFirst,
                       Connection{{Descriptor(ends[0]), Channel::Side::rendezvous, setup_.job.secret}});
  return Descriptor(ends[1]);
}

void RendezvousServer::add_to(std::vector<pollfd>& entries) const {
  // If the process has run out of descriptors, new connections wait until the next heartbeat.
  if (!full_) entries.push_back({listening_.fd(), POLLIN, 0});
  for (const auto& [id, connection] : connections_) entries.push_back(connection.channel.entry());
}

void RendezvousServer::attend() {
  accept_all();
  for (auto& [id, connection] : connections_) attend_to(id, connection);
  const auto now = Clock::now();
  state_.advance(now);
  if (now >= beat_at_) {
    beat_at_ = now + setup_.options.heartbeat_timeout / 3;
    for (auto& [id, connection] : connections_)
      if (connection.channel.is_trusted() && !connection.wound_down_by)
        connection.channel.send(encode(RendezvousMessage(Alive{})));
  }
  send_messages();
  remove_ended();
}

void RendezvousServer::accept_all() {
  for (;;) {
    cluster::SocketAddress address{.size = sizeof address.bytes};
    Descriptor socket(accept4(listening_.fd(), reinterpret_cast<sockaddr*>(&address.bytes), &address.size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    full_ = !socket && (errno == EMFILE || errno == ENFILE);
    if (!socket) return;
    const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                         [](const auto& entry) { return !entry.second.channel.is_trusted(); });
    if (static_cast<std::size_t>(strangers) >= kMostStrangers) continue;
    connections_.emplace(next_id_++, Connection{{std::move(socket), Channel::Side::rendezvous, setup_.job.secret},
                                                cluster::number_of(address)});
  }
}

void RendezvousServer::attend_to(Id id, Connection& connection) {
  if (connection.wound_down_by) return;
  auto& channel = connection.channel;
  channel.exchange();
  try {
    while (const auto text = channel.receive()) state_.receive(id, decode_node_message(*text), Clock::now());
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    return give_up(id, connection, "its launcher sent what this one does not understand: is it another version?");
  }
  const auto silent = Clock::now() - channel.heard();
  switch (channel.state()) {
    case Channel::State::closed: return give_up(id, connection, "its launcher closed the connection, or was killed");
    case Channel::State::stranger:
      return turn_away(connection,
                       "is not a launcher of this job, another version, or a rank of a node without --max-restarts");
    case Channel::State::forged:
      if (channel.is_trusted()) return give_up(id, connection, "what it sent was not signed by its launcher");
      return turn_away(connection, "has another secret than this job's (MU512)");
    case Channel::State::open: break;
  }
  if (!channel.is_trusted() && silent > kTimeToJoin) turn_away(connection, "connected and said nothing");
  // Node 0 cannot lose itself: it is silent only after this process was stopped.
  else if (channel.is_trusted() && id != RendezvousState::kFirst && silent > setup_.options.heartbeat_timeout)
    lose_silent(id, connection);
}

/// Gives up a silent node. It may only have been stopped for a while; then it learns that it is lost.
void RendezvousServer::lose_silent(Id id, Connection& connection) {
  const auto why = str("its launcher gave no sign of life for ", seconds_text(setup_.options.heartbeat_timeout));
  connection.channel.send(encode(RendezvousMessage(Finish{
      2, "MU516", {str("this node is lost to the job: ", why, ". The others go on without it; start it again")}})));
  give_up(id, connection, why);
  connection.wound_down_by = Clock::now() + kWindDownTime;
}

void RendezvousServer::give_up(Id id, Connection& connection, const std::string& why) {
  connection.wound_down_by = Clock::now();
  state_.lose(id, why, Clock::now());
}

void RendezvousServer::turn_away(Connection& connection, const std::string& why) {
  connection.wound_down_by = Clock::now() + kWindDownTime;
  // Signed with this job's secret, so that a launcher with another secret notices the difference.
  if (connection.channel.state() == Channel::State::forged) connection.channel.send(encode(RendezvousMessage(Alive{})));
  if (++turned_away_ > kMostStrangerLines) return;
  state_.notify_first(str("a process at ", connection.host, " that connected was turned away: it ", why));
}

void RendezvousServer::send_messages() {
  for (const auto& [id, message] : state_.take_messages()) {
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second.wound_down_by) continue;
    auto& connection = found->second;
    connection.channel.send(encode(message));
    const auto* end = std::get_if<Finish>(&message);
    if (end && !end->id.empty() && !state_.finished()) connection.wound_down_by = Clock::now() + kWindDownTime;
  }
  for (auto& [id, connection] : connections_)
    if (!connection.wound_down_by) connection.channel.flush();
}

void RendezvousServer::remove_ended() {
  for (auto next = connections_.begin(); next != connections_.end();) {
    auto& [channel, host, wound_down_by] = next->second;
    const bool ended = wound_down_by && (channel.wind_down() || Clock::now() >= *wound_down_by);
    next = ended ? connections_.erase(next) : std::next(next);
  }
}

}  // namespace muster::launcher
