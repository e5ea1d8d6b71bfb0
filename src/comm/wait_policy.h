#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "muster/comm/detail/time_point.h"

namespace muster::comm {

/// The time that is left until the deadline, at least 1 ms. It is rounded up: a wait of that length ends after the
/// deadline, so a failed one is known to be late.
inline std::chrono::milliseconds left_until(TimePoint deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - TimePoint::clock::now()),
                  std::chrono::milliseconds(1));
}

/// How the threads of a process wait for each other: this class in real time, a SeededScheduler in an order that it
/// draws.
/// One mutex guards everything that the conditions read.
class WaitPolicy {
 public:
  using Lock = std::unique_lock<std::mutex>;

  virtual ~WaitPolicy() = default;
  std::mutex& mutex() { return mutex_; }
  /// Waits with the lock until `ready` returns true. Returns false if the deadline passed first.
  virtual bool wait(Lock& lock, const std::function<bool()>& ready, TimePoint deadline);
  /// Call it with the lock after any change that a condition may read.
  virtual void changed(Lock& lock);
  /// A point at which another thread may run first. The lock is not held.
  virtual void pause() {}
  /// Starts a thread that may call the functions above.
  virtual std::thread start_thread(std::function<void()> body);
  /// Joins a thread of start_thread. Requires: it is about to end.
  virtual void join(std::thread& thread) { thread.join(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace muster::comm
