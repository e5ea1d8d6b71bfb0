#pragma once

#include <string>

namespace muster::cluster {

/// A listening TCP socket: while it is open nobody else can have its port. Movable; closes itself.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  /// On `address`, one of this host's as a number ("127.0.0.1", "fe80::1"); empty: on all of them. `port` 0 takes a free one.
  /// Throws: LaunchError (MU033) if the port is taken or cannot be bound.
  ListeningSocket(int port, const std::string& address);
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

/// Which address of this host a store at `main_address` listens on: that address, where it is one of this host's own and not
/// a loopback that its name happens to mean here; the loopback, where it is asked for as such ("localhost", "127.0.0.1");
/// else empty, for all of them.
std::string where_to_listen(const std::string& main_address);

/// The address that a socket is bound to, as a number; empty: all of them, or it has none.
std::string bound_address(int descriptor);

/// Whether all sockets of this host that listen on this port do so on the loopback; false if none is seen.
bool listens_on_loopback_alone(int port);

/// Whether this number is an address that only this host itself reaches.
bool is_loopback(const std::string& address);

}  // namespace muster::cluster
