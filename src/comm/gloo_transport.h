#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "cluster/secret.h"
#include "muster/comm/transport.h"

namespace muster::comm {

/// The settings of a transport over gloo.
struct GlooSetup {
  std::string interface;  ///< empty: GLOO_SOCKET_IFNAME, or loopback if `one_node`, or what the host name resolves to
  bool one_node = true;
  std::chrono::milliseconds connect_timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  cluster::Secret secret;  ///< the secret with which ranks authenticate; none: any peer is accepted as the rank
};

/// A full mesh of connections by ProcessGroupGloo. Throws: CommError (MU058), (MU067) if a peer does not have the
/// secret.
std::unique_ptr<Transport> make_gloo_transport(const GlooSetup& setup, const std::string& name, int rank, int size);

/// A plain ProcessGroupGloo, used as a backend to plug in. Throws: CommError (MU058).
c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const GlooSetup& setup, const std::string& name, int rank, int size);

}  // namespace muster::comm
