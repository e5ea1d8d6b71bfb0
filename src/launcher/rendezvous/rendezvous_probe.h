#pragma once

#include <poll.h>

#include "base/descriptor.h"
#include "cluster/listening_socket.h"
#include "launcher/rendezvous/channel.h"

namespace muster::launcher {

/// For a launcher without a rendezvous: finds out whether the launcher of node 0 holds one at the address where the
/// ranks of this node would wait for a store. It connects once something listens there, and waits for the first words:
/// a rendezvous speaks first, a store does not. If it finds out nothing, the ranks will. Only one look-up of the name
/// blocks.
class RendezvousProbe {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RendezvousProbe(MainAddress place) : place_(std::move(place)) {}

  void add_to(std::vector<pollfd>& entries) const;
  /// When attend() must be called; time_point::max(): never again.
  Clock::time_point due() const { return ended_ ? Clock::time_point::max() : due_; }
  /// Throws: LaunchError (MU513) if there is a rendezvous.
  void attend();

 private:
  void try_next();
  void listen();
  void end();

  std::vector<cluster::SocketAddress> addresses_;  // all addresses of node 0
  Clock::time_point due_ = Clock::now();
  bool ended_ = false, looked_up_ = false;
  std::size_t next_ = 0;
  MainAddress place_;
  Descriptor socket_;
  std::string words_;
};

}  // namespace muster::launcher
