#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "muster/comm/options.h"

namespace muster::comm {

/// Milliseconds after which a rank that waits for other ranks reports it: the first time, and the interval from then
/// on.
inline constexpr std::chrono::milliseconds kFirstWord{5000}, kLaterWords{30000};

/// The time that is left until the deadline, at least 1 ms. It is rounded up, so that a wait of that length ends after
/// the deadline and its failure is known to be a timeout.
inline std::chrono::milliseconds left_until(TimePoint deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - TimePoint::clock::now()),
                  std::chrono::milliseconds(1));
}

/// Waits until the descriptor is ready for these events of poll(). Returns false at the deadline, also if signals
/// interrupt every wait. It looks at least once.
bool is_ready(int descriptor, short events, TimePoint deadline);

/// Divides a timeout into parts. After each part the waiting code may report that it waits.
class WarningTimeout {
 public:
  explicit WarningTimeout(std::chrono::milliseconds timeout) : end_(begin_ + timeout) {}
  /// The length of the next part.
  std::chrono::milliseconds next() {
    return std::clamp(std::exchange(part_, kLaterWords), std::chrono::milliseconds(1), left());
  }
  /// What is left of the timeout, at least a millisecond.
  std::chrono::milliseconds left() const { return left_until(end_); }
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

/// How the threads of a process wait for each other: in this class in real time, in a SeededScheduler in an order that
/// it draws. One mutex guards everything that the conditions read.
class WaitPolicy {
 public:
  virtual ~WaitPolicy() = default;
  base::Mutex& mutex() MUSTER_RETURNS_MUTEX(mutex_) { return mutex_; }
  /// Waits with the lock until `ready` returns true. Returns false if the deadline passed first.
  virtual bool wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) MUSTER_REQUIRES(mutex());
  /// Call it with the lock after any change that a condition may read.
  virtual void changed(base::Lock&) MUSTER_REQUIRES(mutex()) { changed_.notify_all(); }
  /// A point at which another thread may run first. The lock is not held.
  virtual void pause() MUSTER_EXCLUDES(mutex()) {}
  /// Starts a thread that may call the functions of this class.
  virtual std::thread start_thread(std::function<void()> body) { return std::thread(std::move(body)); }
  /// Joins a thread that start_thread() made. Requires: the thread is about to end.
  virtual void join(std::thread& thread) { thread.join(); }

 private:
  base::Mutex mutex_;
  base::Condition changed_;
};

/// Runs threads one at a time, in an order drawn from a seed: at every wait and pause it chooses the next thread among
/// those that can proceed. One seed always gives one order, however the system schedules threads. No thread sleeps: if
/// none can proceed, the earliest deadline of all threads expires at once. A thread that blocks in any other way keeps
/// its turn, so it must not wait for another thread of the schedule.
class SeededScheduler final : public WaitPolicy {
 public:
  explicit SeededScheduler(uint64_t seed);

  bool wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) override MUSTER_REQUIRES(mutex());
  void changed(base::Lock&) override MUSTER_REQUIRES(mutex()) {
    outside_.notify_all();
    if (!running_) give_turn();
  }
  void pause() override MUSTER_EXCLUDES(mutex());
  std::thread start_thread(std::function<void()> body) override;
  void join(std::thread& thread) override;

  /// Lets the threads started so far begin. None of them runs earlier.
  void begin();

 private:
  /// Its members are guarded by mutex().
  struct Actor {
    const std::function<bool()>* ready = nullptr;  ///< when the thread can go on; null: at any time
    TimePoint deadline = TimePoint::max();
    bool waits = true;
    bool ended = false;
    bool late = false;
    uint32_t weight = 1;  ///< weight in the draw; slow threads have a smaller one
    base::Condition turn;
  };

  Actor* current() MUSTER_REQUIRES(mutex()) {
    auto found = threads_.find(std::this_thread::get_id());
    return found == threads_.end() ? nullptr : found->second;
  }
  void stay_on_core() const;
  void give_turn() MUSTER_REQUIRES(mutex());
  void await_turn(base::Lock& lock, Actor& actor) MUSTER_REQUIRES(mutex());

  std::mt19937_64 random_ MUSTER_GUARDED_BY(mutex());
  std::vector<std::unique_ptr<Actor>> actors_ MUSTER_GUARDED_BY(mutex());
  std::map<std::thread::id, Actor*> threads_ MUSTER_GUARDED_BY(mutex());
  Actor* running_ MUSTER_GUARDED_BY(mutex()) = nullptr;
  bool begun_ MUSTER_GUARDED_BY(mutex()) = false;
  base::Condition outside_;
  const int core_;  ///< the core on which all threads run
};

}  // namespace muster::comm
