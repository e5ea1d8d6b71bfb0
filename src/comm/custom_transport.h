#pragma once

#include "cluster/secret.h"
#include "comm/collectives.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The transport that a program or a shared object provides for the backend of that name.
struct FoundTransport {
  TransportFactory make = nullptr;  ///< the factory; null: there is none
  std::string place{};              ///< where it was found: "of the program", or "from /lib/libmuster_NAME.so"
};

/// Requires: Muster has no backend of that name. Throws: ConfigError (MU577) for a transport that cannot be used.
FoundTransport find_transport(const std::string& name);

/// How ranks connect over a custom transport.
struct CustomTransportSetup {
  std::string backend{};
  std::chrono::milliseconds connect_timeout{};
  cluster::Secret secret{};  ///< the secret with which ranks authenticate
};

using MakeTransport = std::function<std::unique_ptr<Transport>()>;

/// The collectives over the transport that `make` returns for this rank of a group. Collective. Throws: ConfigError
/// (MU577) if `make` returns none, or one with another rank or size; CommError (MU058) if it throws, or ranks cannot be
/// reached, (MU067) for a peer without the secret.
/// Why: docs/decisions/0157-a-transport-of-the-programs-own.md.
std::unique_ptr<Collectives> make_over_custom(const CustomTransportSetup& setup, const std::string& group, int rank,
                                              int size, const MakeTransport& make);

}  // namespace muster::comm
