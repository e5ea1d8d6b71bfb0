#pragma once

#include <string>

namespace muster {

/// How the ranks of a job form a group.
struct GroupOptions {
  std::string backend = "gloo";             ///< "gloo", or the name of a factory given to connect()
  std::string interface = "";               ///< network interface; empty: GLOO_SOCKET_IFNAME, or chosen by the
                                            ///< addresses
  double rendezvous_timeout_seconds = 300;  ///< how long a rank waits for the others to appear
  double timeout_seconds = 600;             ///< how long one operation may take
};

}  // namespace muster
