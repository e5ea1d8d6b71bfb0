#pragma once  // for other rooms

#include <condition_variable>
#include <mutex>
#include <utility>

// What clang's -Wthread-safety reads, and no other compiler: the mutex that guards a member or that a function needs.
// Why: docs/decisions/0172-annotated-mutexes.md.
#if defined(__clang__)
#define MUSTER_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define MUSTER_THREAD_SAFETY(attribute)
#endif
#define MUSTER_CAPABILITY(kind) MUSTER_THREAD_SAFETY(capability(kind))
#define MUSTER_SCOPED_CAPABILITY MUSTER_THREAD_SAFETY(scoped_lockable)
/// Of a member: it is used only while the mutex is locked.
#define MUSTER_GUARDED_BY(mutex) MUSTER_THREAD_SAFETY(guarded_by(mutex))
/// Of a function or a lambda: its caller has locked the mutexes.
#define MUSTER_REQUIRES(...) MUSTER_THREAD_SAFETY(requires_capability(__VA_ARGS__))
/// Of a function: its caller has not locked the mutexes, because the function locks them.
#define MUSTER_EXCLUDES(...) MUSTER_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define MUSTER_ACQUIRE(...) MUSTER_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define MUSTER_RELEASE(...) MUSTER_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// Of a function that returns a mutex: which one.
#define MUSTER_RETURNS_MUTEX(mutex) MUSTER_THREAD_SAFETY(lock_returned(mutex))
#define MUSTER_ASSERTS_LOCKED(...) MUSTER_THREAD_SAFETY(assert_capability(__VA_ARGS__))
/// Of a function that the analysis cannot follow. A comment beside it says why.
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS MUSTER_THREAD_SAFETY(no_thread_safety_analysis)

namespace muster::base {

/// A std::mutex whose use clang checks.
class MUSTER_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  /// Tells clang that the mutex is locked, where it cannot see it: the mutex is one that is locked under another name.
  void assume_locked() const MUSTER_ASSERTS_LOCKED(this) {}

 private:
  friend class Lock;
  std::mutex mutex_;
};

/// A lock of a mutex: to the end of the scope, but for what lies between unlock() and lock().
class MUSTER_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) MUSTER_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~Lock() MUSTER_RELEASE() {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void lock() MUSTER_ACQUIRE() { lock_.lock(); }
  void unlock() MUSTER_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

/// A std::condition_variable for these locks. What a wait is for is a lambda with MUSTER_REQUIRES(the mutex).
class Condition {
 public:
  template <class Ready>
  void wait(Lock& lock, Ready ready) {
    condition_.wait(lock.lock_, std::move(ready));
  }
  /// Returns what `ready` says in the end.
  template <class Time, class Ready>
  bool wait_for(Lock& lock, const Time& time, Ready ready) {
    return condition_.wait_for(lock.lock_, time, std::move(ready));
  }
  template <class Time, class Ready>
  bool wait_until(Lock& lock, const Time& deadline, Ready ready) {
    return condition_.wait_until(lock.lock_, deadline, std::move(ready));
  }
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace muster::base
