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
#define MUSTER_TRY_ACQUIRE(...) MUSTER_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define MUSTER_RELEASE(...) MUSTER_THREAD_SAFETY(release_capability(__VA_ARGS__))
/// Of a function that returns a mutex: which one.
#define MUSTER_RETURNS_MUTEX(mutex) MUSTER_THREAD_SAFETY(lock_returned(mutex))
#define MUSTER_ASSERTS_LOCKED(...) MUSTER_THREAD_SAFETY(assert_capability(__VA_ARGS__))
/// Of a function that the analysis cannot follow. A comment beside it says why.
#define MUSTER_NO_THREAD_SAFETY_ANALYSIS MUSTER_THREAD_SAFETY(no_thread_safety_analysis)

namespace muster::base {

/// A std::mutex, or another one, whose use clang checks.
template <class Std>
class MUSTER_CAPABILITY("mutex") BasicMutex {
 public:
  BasicMutex() = default;
  BasicMutex(const BasicMutex&) = delete;
  BasicMutex& operator=(const BasicMutex&) = delete;

  /// For a Lock that is made with std::adopt_lock.
  bool try_lock() MUSTER_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  /// Tells clang that the mutex is locked, where it cannot see it: the mutex is one that is locked under another name.
  void assume_locked() const MUSTER_ASSERTS_LOCKED(this) {}

 private:
  template <class>
  friend class BasicLock;
  Std mutex_;
};

/// A lock of a mutex: to the end of the scope, but for what lies between unlock() and lock().
template <class Std>
class MUSTER_SCOPED_CAPABILITY BasicLock {
 public:
  explicit BasicLock(BasicMutex<Std>& mutex) MUSTER_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  BasicLock(BasicMutex<Std>& mutex, std::adopt_lock_t adopt) MUSTER_REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
  ~BasicLock() MUSTER_RELEASE() {}
  BasicLock(const BasicLock&) = delete;
  BasicLock& operator=(const BasicLock&) = delete;

  void lock() MUSTER_ACQUIRE() { lock_.lock(); }
  void unlock() MUSTER_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  std::unique_lock<Std> lock_;
};

using Mutex = BasicMutex<std::mutex>;
using Lock = BasicLock<std::mutex>;

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
