#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// Milliseconds after which a rank that waits for other ranks reports it: the first time, and the interval from then
/// on.
inline constexpr std::chrono::milliseconds kFirstWord{5000}, kLaterWords{30000};

/// Divides a timeout into parts. After each part the waiting code may report that it waits.
class WarningTimeout {
 public:
  explicit WarningTimeout(std::chrono::milliseconds timeout);
  /// The length of the next part.
  std::chrono::milliseconds next();
  /// What is left of the timeout, at least a millisecond.
  std::chrono::milliseconds left() const;
  bool over() const { return Clock::now() >= end_; }
  double waited_seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
  Clock::time_point end_;
  std::chrono::milliseconds part_ = kFirstWord;
};

/// Warns while it exists. For waits that cannot be divided into parts.
class Reminder {
 public:
  /// `words` is called with the seconds waited so far, on a thread of this object.
  explicit Reminder(std::function<std::string(double waited_seconds)> words);
  ~Reminder();
  Reminder(const Reminder&) = delete;
  Reminder& operator=(const Reminder&) = delete;

 private:
  void remind();

  base::Condition ended_;
  base::Mutex mutex_;
  bool end_ MUSTER_GUARDED_BY(mutex_) = false;
  std::function<std::string(double)> words_;
  std::thread thread_;  // last, because it uses all other members
};

/// The time that is left until the deadline, at least 1 ms. It is rounded up, so that a wait of that length ends after
/// the deadline and its failure is known to be a timeout.
inline std::chrono::milliseconds left_until(TimePoint deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - TimePoint::clock::now()),
                  std::chrono::milliseconds(1));
}

/// How the threads of a process wait for each other: in this class in real time, in a SeededScheduler in an order that
/// it draws. One mutex guards everything that the conditions read.
class WaitPolicy {
 public:
  virtual ~WaitPolicy() = default;
  base::Mutex& mutex() MUSTER_RETURNS_MUTEX(mutex_) { return mutex_; }
  /// Waits with the lock until `ready` returns true. Returns false if the deadline passed first.
  virtual bool wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) MUSTER_REQUIRES(mutex());
  /// Call it with the lock after any change that a condition may read.
  virtual void changed(base::Lock& lock) MUSTER_REQUIRES(mutex());
  /// A point at which another thread may run first. The lock is not held.
  virtual void pause() MUSTER_EXCLUDES(mutex()) {}
  /// Starts a thread that may call the functions of this class.
  virtual std::thread start_thread(std::function<void()> body);
  /// Joins a thread that start_thread() made. Requires: the thread is about to end.
  virtual void join(std::thread& thread) { thread.join(); }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
};

}  // namespace muster::comm
