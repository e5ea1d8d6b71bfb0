#pragma once  // for other rooms

#include <pthread.h>
#include <signal.h>

#include <cstdint>
#include <thread>
#include <utility>
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

/// A thread that blocks all signals: they are for the threads of the program.
template <class Task>
std::thread quiet_thread(Task&& task) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread thread(std::forward<Task>(task));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace muster
