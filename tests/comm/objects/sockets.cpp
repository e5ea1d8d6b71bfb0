// The object of a transport that is not Muster's: it is linked with nothing of Muster.
#include "../../../docs/howto/socket_transport.h"

namespace {

std::unique_ptr<muster::comm::Transport> make(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              const muster::GroupOptions& options) {
  return sockets::connect(store, "world", rank, size, options.rendezvous_timeout);
}

}  // namespace

extern "C" const muster::comm::TransportObject muster_transport_sockets{.make = make};
