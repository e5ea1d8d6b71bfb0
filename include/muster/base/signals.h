#pragma once

#include <cstdint>
#include <vector>

namespace muster {

/// Turns signals of the process into something to ask for, while it lives. Several may watch the same signal at once.
/// A handler that the program had set before still runs; the default action, such as ending the process, does not.
/// Thread safety: any thread.
class SignalWatch {
 public:
  explicit SignalWatch(std::vector<int> signals);
  /// The last watch of a signal gives back what was there before.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// One of its signals that has come since construction or the last forget(); 0: none. Never blocks.
  int received() const noexcept;
  void forget() noexcept;

 private:
  struct Watched {
    int signal;
    uint32_t seen;
  };
  std::vector<Watched> watched_;
};

}  // namespace muster
