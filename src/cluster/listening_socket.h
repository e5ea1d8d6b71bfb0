#pragma once  // for other rooms

#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/descriptor.h"

namespace muster::cluster {

/// A listening TCP socket: while it is open, no other process can take its port. Movable; closes itself.
class ListeningSocket {
 public:
  ListeningSocket() = default;
  /// Listens on `address`, a numeric address of this host ("127.0.0.1", "fe80::1"); empty: all its addresses. `port` 0:
  /// a free port.
  /// Throws: LaunchError (MU033) if the port is taken or cannot be bound.
  ListeningSocket(int port, const std::string& address);

  int fd() const noexcept { return socket_.get(); }
  int port() const noexcept { return port_; }
  /// Releases the ownership of the descriptor and returns it.
  int release() noexcept { return socket_.release(); }

 private:
  int port_ = 0;
  Descriptor socket_;
};

/// An address to which a socket connects or binds.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
};

/// The addresses of this port of a host, for getaddrinfo()'s `flags`. None if there is no such host; `problem` then
/// gets the reason.
std::vector<SocketAddress> resolve(const std::string& host, int port, int flags = 0, std::string* problem = nullptr);

/// The numeric address, without the port.
std::string number_of(const SocketAddress& address);

/// The address of this host on which a store at `main_address` is to listen: that address, if this host has it and it
/// is not a loopback address that merely stands for the host's name; the loopback address if it is named explicitly
/// ("localhost", "127.0.0.1"); otherwise empty, for all addresses.
std::string where_to_listen(const std::string& main_address);

/// The numeric address that a socket is bound to; empty for all addresses or none.
std::string bound_address(int descriptor);

/// Whether all of this host's sockets that listen on this port are bound to the loopback; false if there is none.
bool listens_on_loopback_alone(int port);

/// Whether this numeric address can be reached only from this host.
bool is_loopback(const std::string& address);

}  // namespace muster::cluster
