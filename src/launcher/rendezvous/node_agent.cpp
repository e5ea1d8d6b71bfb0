#include "launcher/rendezvous/node_agent.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdio>

#include "base/log.h"
#include "base/text.h"
#include "launcher/job.h"
#include "launcher/restarts.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using log::str;
using std::chrono::milliseconds;

constexpr milliseconds kLeaveTime{2000};    // time for the rendezvous to read the last message
constexpr milliseconds kTimeOfCause{1000};  // time for the end of a rank that another node has lost
constexpr std::size_t kMostOfCause = 500;   // limit in characters; that node's launcher prints the full text

std::string shortened(const std::string& line) {
  return line.size() <= kMostOfCause ? line : line.substr(0, kMostOfCause) + "...";
}

constexpr milliseconds kPause{200};     // pause between two attempts
constexpr milliseconds kAttempt{5000};  // time-out of one attempt
constexpr milliseconds kFirstLine{5000}, kNextLine{30000};

std::string text_of_errno(int error) { return std::generic_category().message(error); }

/// Repeated attempts to connect, to each address of the host in turn. While nothing listens there, or the name cannot
/// be resolved, it tries again, and reports this after 5 s and then every 30 s.
class Connecting {
 public:
  Connecting(const MainAddress& place, const RelayedSignals& signals) : place_(place), signals_(signals) {}

  /// A connected non-blocking socket, or the signal that stopped the wait for it. Throws: LaunchError (MU511).
  std::variant<Descriptor, int> until(Channel::Clock::time_point end) {
    auto line_at = Channel::Clock::now() + kFirstLine;
    for (;;) {
      if (auto socket = try_all()) return socket;
      if (!stopped_by_) stopped_by_ = signals_.wait_until(Channel::Clock::now() + kPause);
      if (stopped_by_) return stopped_by_;
      const auto now = Channel::Clock::now();
      if (now >= end) refuse();
      if (now < line_at) continue;
      line_at = now + kNextLine;
      std::fprintf(stderr, "muster: this launcher waits for that of node 0 at %s (%s)\n", name().c_str(), why_.c_str());
    }
  }

 private:
  std::string name() const { return str(place_.address, ":", place_.port); }

  [[noreturn]] void refuse() const {
    throw LaunchError("MU511", str("the launcher of node 0 was not reached at ", name(), ": ", why_,
                                   "; start it there with --node-rank 0, give all nodes its --main-address and "
                                   "--main-port, and open the port in firewalls"));
  }

  Descriptor try_all() {
    for (const auto& address : cluster::resolve(place_.address, place_.port, 0, &why_)) {
      if (stopped_by_) break;
      if (auto socket = try_one(address)) return socket;
    }
    return Descriptor();
  }

  Descriptor try_one(const cluster::SocketAddress& address) {
    Descriptor one(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (one && connect(one.get(), address.get(), address.size) == 0) return one;
    int error = errno;
    if (one && error == EINPROGRESS) {
      stopped_by_ = signals_.wait_until(Channel::Clock::now() + kAttempt, {{one.get(), POLLOUT, 0}});
      pollfd entry{one.get(), POLLOUT, 0};
      socklen_t size = sizeof error;
      if (poll(&entry, 1, 0) != 1) error = ETIMEDOUT;
      else getsockopt(one.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0 && !stopped_by_) return one;
    }
    why_ = text_of_errno(error);
    return Descriptor();
  }

  MainAddress place_;
  const RelayedSignals& signals_;
  int stopped_by_ = 0;
  std::string why_;
};

}  // namespace

NodeAgent::NodeAgent(const NodeSetup& setup, const RelayedSignals& signals) : setup_(setup), signals_(&signals) {
  if (setup.entry.node_rank == 0)
    server_ = std::make_unique<RendezvousServer>(setup, [this](int nodes) { return prepare_round(nodes); });
}

/// A round shares nothing with the previous one. With one node, only this node needs to reach its store.
StartRound NodeAgent::prepare_round(int nodes) {
  StartRound round{.main_address = nodes == 1 ? "127.0.0.1" : setup_.job.main_address,
                   .name = new_job_name(),
                   .nodes = nodes,
                   .start = setup_.job.start};
  store_ = cluster::ListeningSocket(0, cluster::where_to_listen(round.main_address));
  round.main_port = store_.port();
  return round;
}

/// Returns the signal that stopped the connection attempt, or 0.
int NodeAgent::connect() {
  std::variant<Descriptor, int> socket;
  if (server_) socket = server_->connect_first_node();
  else
    socket = Connecting({setup_.job.main_address, setup_.job.main_port}, *signals_)
                 .until(Clock::now() + setup_.options.join_timeout);
  if (const auto* stopped_by = std::get_if<int>(&socket)) return *stopped_by;
  channel_.emplace(std::get<Descriptor>(std::move(socket)), Channel::Side::node, setup_.job.secret);
  send(setup_.entry);
  return 0;
}

NodeAgent::Next NodeAgent::await_round() {
  if (!channel_)
    if (const int stopped_by = connect()) return 128 + stopped_by;
  send(Ready{});
  for (;;) {
    attend();
    print_lines();
    if (finish_ && !finish_->id.empty())
      throw LaunchError(finish_->id, finish_->lines.empty() ? "" : finish_->lines.front());
    if (finish_) {
      lines_ = finish_->lines;
      print_lines();
      return finish_->code;
    }
    if (!lost_.empty()) refuse();
    if (round_) return *std::exchange(round_, std::nullopt);
    std::vector<pollfd> entries;
    add_to(entries);
    const int stopped_by = signals_->wait_until(due(), entries);
    if (!stopped_by) continue;
    stop(stopped_by);
    leave(str("its launcher was stopped by signal ", stopped_by));
    return 128 + stopped_by;
  }
}

void NodeAgent::refuse() const {
  const auto place = str(setup_.job.main_address, ":", setup_.job.main_port);
  if (channel_->is_trusted())
    throw LaunchError(
        "MU515", str("the launcher of node 0 at ", place, ", which holds the rendezvous of the nodes, is lost: ", lost_,
                     "; the job has ended, its output there says why. Start it again on all nodes"));
  if (channel_->state() == Channel::State::forged)
    throw LaunchError("MU512", str("the launcher at ", place,
                                   " has another secret than this one; give all nodes of the job the same one "
                                   "(MUSTER_SECRET, --secret-file), and each job its own"));
  throw LaunchError("MU511", str("what listens at ", place, " is not the launcher of node 0 of this job: ", lost_,
                                 "; start node 0 with the same --nodes and --max-restarts, or give another "
                                 "--main-port"));
}

void NodeAgent::leave(const std::string& why) {
  if (!channel_ || !lost_.empty() || finish_) return;
  if (!stops_job_) send(Left{why});
  if (server_) return await_others();
  const auto until = Clock::now() + kLeaveTime;
  while (!channel_->wind_down() && Clock::now() < until) {
    auto entry = channel_->entry();
    poll(&entry, 1, 50);
  }
}

/// Waits for the other launchers: their ranks were told to stop, and may be saving their state.
void NodeAgent::await_others() {
  for (attend(); stops_job_ && !finish_; attend()) {
    print_lines();
    std::vector<pollfd> entries;
    add_to(entries);
    if (signals_->wait_until(due(), entries)) return;
  }
}

void NodeAgent::add_to(std::vector<pollfd>& entries) const {
  if (server_) server_->add_to(entries);
  if (channel_ && lost_.empty()) entries.push_back(channel_->entry());
}

Channel::Clock::time_point NodeAgent::due() const {
  const auto now = Clock::now();
  auto own = lost_.empty() ? beat_at_ : now + kLeaveTime;
  if (ends_round_at_ && now < *ends_round_at_) own = std::min(own, *ends_round_at_);
  return server_ ? std::min(own, server_->due()) : own;
}

void NodeAgent::attend() {
  if (!channel_ || !lost_.empty()) return;
  if (Clock::now() >= beat_at_) {
    beat_at_ = Clock::now() + setup_.options.heartbeat_timeout / 3;
    send(Alive{});
  }
  channel_->exchange();
  if (server_) server_->attend();
  channel_->exchange();
  try {
    while (const auto text = channel_->receive()) handle(decode_rendezvous_message(*text));
  } catch (const std::exception&) {
    lost_ = "it sent what this launcher does not understand; is it another version?";
  }
  if (!finish_) check_channel();
}

void NodeAgent::check_channel() {
  if (!lost_.empty()) return;
  const auto silent = Clock::now() - channel_->heard();
  switch (channel_->state()) {
    case Channel::State::closed: lost_ = "it closed the connection, or was killed"; break;
    case Channel::State::stranger: lost_ = "it answers as another program, or another version, does"; break;
    case Channel::State::forged: lost_ = "what it sends is not signed with this job's secret"; break;
    case Channel::State::open:
      // Node 0 cannot lose itself: it is silent only after this process was stopped.
      if (!server_ && silent > setup_.options.heartbeat_timeout)
        lost_ = str("it gave no sign of life for ", seconds_text(setup_.options.heartbeat_timeout));
  }
}

void NodeAgent::handle(const RendezvousMessage& message) {
  if (const auto* round = std::get_if<StartRound>(&message)) {
    round_ = *round;
    ends_round_at_.reset();
    reported_ = false;
  }
  if (const auto* note = std::get_if<Note>(&message)) lines_.push_back(note->line);
  if (const auto* finish = std::get_if<Finish>(&message)) finish_ = *finish;
  if (const auto* request = std::get_if<Stop>(&message)) signal_ = request->signal;
  if (const auto* end = std::get_if<EndRound>(&message)) {
    // The lost rank may be on this node and about to end; its end then gives the cause.
    ends_round_at_ = Clock::now() + (end->secondary ? kTimeOfCause : milliseconds(0));
    lines_.push_back(str(end->why, "; all ranks are ended"));
  }
}

void NodeAgent::follow(Supervisor& supervisor) {
  if (const auto& cause = supervisor.cause(); cause && !std::exchange(reported_, true))
    send(Failed{.code = cause->end.exit_code(),
                .secondary = cause->kind == RootCause::Kind::elsewhere,
                .what = shortened(one_line(*cause))});
  const bool over = (ends_round_at_ && Clock::now() >= *ends_round_at_) || finish_ || !lost_.empty();
  if (!over || std::exchange(reported_, true)) return;
  supervisor.end_all();
}

void NodeAgent::report_end(const Supervisor& supervisor, int stopped_by) {
  if (stopped_by && !server_) return send(Left{str("its launcher was stopped by signal ", stopped_by)});
  for (const auto& rank : supervisor.snapshot())
    if (rank.end && rank.end->failed() && !std::exchange(reported_, true))
      send(Failed{rank.end->exit_code(), true, str("rank ", rank.rank, " ", rank.end->describe())});
  send(Ended{supervisor.made_steps()});
}

void NodeAgent::stop(int signal) {
  if (!server_) return;
  stops_job_ = true;
  send(Stop{signal});
}

void NodeAgent::print_lines() {
  for (const auto& line : take_lines()) std::fprintf(stderr, "muster: %s\n", line.c_str());
}

void NodeAgent::send(const NodeMessage& message) {
  // After this launcher has given up the rendezvous, the rendezvous must not take a message for the end of a round: it
  // sees the connection end instead.
  if (!channel_ || !lost_.empty()) return;
  channel_->send(encode(message));
  channel_->flush();
}

}  // namespace muster::launcher
