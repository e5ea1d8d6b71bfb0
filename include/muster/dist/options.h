#pragma once

#include <string>

namespace muster {

/// How the ranks of a job form a group.
struct GroupOptions {
  std::string backend = "gloo";            ///< "gloo", or a name that connect() was given a factory for
  std::string interface = "";               ///< network interface; empty: GLOO_SOCKET_IFNAME, or what the addresses suggest
  double rendezvous_timeout_seconds = 300; ///< how long a rank waits for the others to appear
  double timeout_seconds = 600;            ///< how long one operation may take
};

}  // namespace muster
