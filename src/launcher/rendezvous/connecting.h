#pragma once

#include <chrono>
#include <string>
#include <variant>

#include "base/descriptor.h"
#include "launcher/watch.h"

namespace muster::launcher {

/// The address at which the launchers of a job meet.
struct MainAddress {
  std::string address;
  int port = 0;
};

/// A connected non-blocking socket, or the signal that stopped the wait for it. While nothing listens there, or the
/// name cannot be resolved, it tries again, and reports this after 5 s and then every 30 s.
/// Throws: LaunchError (MU511) after `timeout`.
std::variant<Descriptor, int> connect_to(const MainAddress& place, std::chrono::milliseconds timeout,
                                         const RelayedSignals& signals);

}  // namespace muster::launcher
