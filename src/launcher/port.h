#pragma once

#include <string>

namespace muster::launcher {

/// A listening TCP socket: while it is open nobody else can have its port. Movable; closes itself.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  /// `port` 0 takes a free one. Loopback only, or all addresses of the host.
  /// Throws: LaunchError (MU033) if the port is taken or cannot be bound.
  ListeningSocket(int port, bool loopback_only);
  ListeningSocket(ListeningSocket&& other) noexcept;
  ListeningSocket& operator=(ListeningSocket&& other) noexcept;
  ~ListeningSocket();

  int fd() const noexcept { return fd_; }
  int port() const noexcept { return port_; }
  /// Gives the descriptor away.
  int release() noexcept;

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace muster::launcher
