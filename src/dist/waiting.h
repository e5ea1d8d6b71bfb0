#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace muster::dist {

using TimePoint = std::chrono::steady_clock::time_point;

/// How the threads of a process wait for each other: in real time here, under a seeded schedule in Schedule.
/// One mutex guards whatever the conditions read.
class Waiting {
 public:
  using Lock = std::unique_lock<std::mutex>;

  virtual ~Waiting() = default;
  std::mutex& mutex() { return mutex_; }
  /// Waits with the lock until `ready` holds. False: the deadline passed first.
  virtual bool wait(Lock& lock, const std::function<bool()>& ready, TimePoint deadline);
  /// To be called with the lock after any change that a condition may read.
  virtual void changed(Lock& lock);
  /// A point at which another thread may run first. The lock is not held.
  virtual void pause() {}
  /// Starts a thread that takes part in the waiting.
  virtual std::thread start_thread(std::function<void()> body);
  /// Joins a thread of start_thread. Requires: it is about to end.
  virtual void join(std::thread& thread) { thread.join(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace muster::dist
