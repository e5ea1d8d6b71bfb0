#pragma once  // for other rooms

#include <cstdint>
#include <vector>

namespace muster {

/// While it lives, catches signals of the process, so that they can be polled. Several watches may share a signal.
/// A handler that the program installed before still runs; the default action, such as ending the process, does not.
/// Thread safety: any thread.
class SignalWatch {
 public:
  explicit SignalWatch(const std::vector<int>& signals);
  /// The last watch of a signal restores the action from before.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// One of its signals received since construction or the last forget(); 0: none. Never blocks.
  int received() const noexcept;
  void forget() noexcept;
  /// The same, of one of its signals.
  void forget(int signal) noexcept;

 private:
  struct Watched {
    int signal;
    uint32_t seen;
  };
  std::vector<Watched> watched_;
};

}  // namespace muster
