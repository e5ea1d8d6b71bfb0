#pragma once  // for other rooms

#include <cstdint>
#include <vector>

namespace muster {

/// Catches signals of the process during its lifetime, so that they can be polled. Several watches may share a signal.
/// A handler that the program installed before still runs; the default action, such as ending the process, does not.
/// Thread safety: any thread.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  /// The last watch of a signal restores the previous action.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// A watched signal received since construction or its last forget(); 0 if none. Never blocks.
  int received() const noexcept;
  /// Forgets that this signal was received.
  void forget(int signal) noexcept;

 private:
  struct Watched {
    int signal;
    uint32_t seen;
  };
  std::vector<Watched> watched_;
};

}  // namespace muster
