#pragma once

#include <chrono>
#include <mutex>
#include <string>

namespace muster::comm {

/// Looks for c10d's store at an address before c10d's client is made, which begins its time-out again with every
/// attempt and waits for ever for a server that is silent. The probe sends what that client sends first (a ping), so
/// another server is not taken for a store.
class StoreProbe {
 public:
  StoreProbe(std::string address, int port, std::chrono::milliseconds timeout);

  /// Tries until a store answers, and returns the address, as a number, at which one does.
  /// Throws: std::runtime_error at the time-out; it says what was found instead.
  std::string wait();
  /// What the last attempt found; empty before one has ended. From any thread.
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
