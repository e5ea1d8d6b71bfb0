#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "launcher/rendezvous/connecting.h"

namespace muster::launcher {

/// For a launcher that takes part in no rendezvous: finds out whether the launcher of node 0 holds one, where the ranks
/// of this node would wait for a store. It connects once something listens there, and hears who speaks first: a
/// rendezvous does, a store does not. What cannot be found out is left to the ranks. Nothing blocks but one look-up of
/// the name.
class RendezvousProbe {
 public:
  explicit RendezvousProbe(MainAddress place) : place_(std::move(place)) {}

  void add_to(std::vector<pollfd>& entries) const;
  /// Milliseconds until something is due; -1: nothing any more.
  int poll_timeout() const;
  /// Throws: LaunchError (MU513) if there is a rendezvous.
  void attend();

 private:
  using Clock = std::chrono::steady_clock;
  struct Address {
    sockaddr_storage bytes;
    socklen_t size;
  };

  void look_up();
  void try_next();
  void listen();
  void end();

  std::vector<Address> addresses_;  // all of node 0
  Clock::time_point due_ = Clock::now();
  bool ended_ = false, looked_up_ = false;
  std::size_t next_ = 0;
  MainAddress place_;
  Descriptor socket_;
  std::string words_;
};

}  // namespace muster::launcher
