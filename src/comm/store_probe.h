#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace muster::comm {

/// Looks for c10d's store at an address before c10d's client is made, because the client starts its timeout again with
/// every attempt and waits forever for a server that is silent. The probe sends what that client sends first (a ping),
/// so another kind of server is not mistaken for a store.
/// Why: docs/decisions/0165-one-deadline-for-the-rendezvous.md.
class StoreProbe {
 public:
  StoreProbe(std::string address, int port, std::chrono::milliseconds timeout);

  /// Tries until a store answers, and returns the numeric address at which it does.
  /// Throws: std::runtime_error at the timeout; it says what was found instead.
  std::string wait();
  /// What the last attempt found; empty before the first one has ended. Any thread may call it.
  std::string found() const;

 private:
  using Clock = std::chrono::steady_clock;

  void note(std::string found);

  const std::string address_;
  const int port_;
  const Clock::time_point end_;
  mutable std::mutex mutex_;
  std::string found_;
};

}  // namespace muster::comm
