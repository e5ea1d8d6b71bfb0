#include "launcher/rendezvous/rendezvous_server.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/quantities.h"
#include "muster/base/error.h"

namespace muster::launcher {
namespace {

using log::str;
using std::chrono::milliseconds;

constexpr milliseconds kWindDownTime{2000};  // time for the other end to read the last message
constexpr milliseconds kTimeToJoin{10000};   // time until the first message of a process that has connected
constexpr std::size_t kMostStrangers = 64;   // limit at any one time
constexpr int kMostStrangerLines = 10;       // limit on lines about strangers, so that they cannot fill the log

std::string number_of_peer(const sockaddr_storage& address, socklen_t size) {
  char text[NI_MAXHOST] = "?";
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

}  // namespace

RendezvousServer::RendezvousServer(const Setup& setup)
    : listening_(setup.main_port, cluster::where_to_listen(setup.main_address)), setup_(setup),
      state_(setup.state, Clock::now()) {
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
                       Connection{{Descriptor(ends[0]), Channel::Side::rendezvous, setup_.secret}, "", {}});
  return Descriptor(ends[1]);
}

void RendezvousServer::add_to(std::vector<pollfd>& entries) const {
  // If the process has run out of descriptors, new connections wait until the next heartbeat.
  if (!full_) entries.push_back({listening_.fd(), POLLIN, 0});
  for (const auto& [id, connection] : connections_) entries.push_back(connection.channel.entry());
}

int RendezvousServer::poll_timeout() const {
  const auto due = std::min(state_.due().value_or(beat_at_), beat_at_);
  return static_cast<int>(std::max<milliseconds::rep>(std::chrono::ceil<milliseconds>(due - Clock::now()).count(), 0));
}

void RendezvousServer::attend() {
  accept_all();
  for (auto& [id, connection] : connections_) attend_to(id, connection);
  const auto now = Clock::now();
  state_.advance(now);
  if (now >= beat_at_) {
    beat_at_ = now + setup_.heartbeat_timeout / 3;
    for (auto& [id, connection] : connections_)
      if (connection.channel.is_trusted() && !connection.wound_down_by)
        connection.channel.send(encode(RendezvousMessage(Alive{})));
  }
  send_messages();
  remove_ended();
}

void RendezvousServer::accept_all() {
  for (;;) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    Descriptor socket(
        accept4(listening_.fd(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
    full_ = !socket && (errno == EMFILE || errno == ENFILE);
    if (!socket) return;
    const auto strangers = std::count_if(connections_.begin(), connections_.end(),
                                         [](const auto& entry) { return !entry.second.channel.is_trusted(); });
    if (static_cast<std::size_t>(strangers) >= kMostStrangers) continue;
    connections_.emplace(
        next_id_++,
        Connection{{std::move(socket), Channel::Side::rendezvous, setup_.secret}, number_of_peer(address, size), {}});
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
                       "is no launcher of this job, another version, or a rank of a node without --max-restarts");
    case Channel::State::forged:
      if (channel.is_trusted()) return give_up(id, connection, "what it sent was not signed by its launcher");
      return turn_away(connection, "has another secret than this job's (MU512)");
    case Channel::State::open: break;
  }
  if (!channel.is_trusted() && silent > kTimeToJoin) turn_away(connection, "connected and said nothing");
  // Node 0 cannot lose itself: it is silent only after this process was stopped.
  else if (channel.is_trusted() && id != RendezvousState::kFirst && silent > setup_.heartbeat_timeout)
    lose_silent(id, connection);
}

/// Gives up a silent node. It may only have been stopped for a while; then it learns that it is lost.
void RendezvousServer::lose_silent(Id id, Connection& connection) {
  const auto why = str("its launcher gave no sign of life for ", seconds_text(setup_.heartbeat_timeout));
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
  lines_.push_back(str("a process at ", connection.host, " that connected was turned away: it ", why));
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
