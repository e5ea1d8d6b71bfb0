#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/wait_policy.h"

namespace muster::comm {

/// Runs threads one at a time, in an order drawn from a seed: at every wait and pause it chooses the next thread among
/// those that can proceed. One seed always gives one order, however the system schedules threads. No thread sleeps: if
/// none can proceed, the earliest deadline of all threads expires at once. A thread that blocks in any other way keeps
/// its turn, so it must not wait for another thread of the schedule.
class SeededScheduler final : public WaitPolicy {
 public:
  explicit SeededScheduler(uint64_t seed);

  bool wait(base::Lock& lock, const std::function<bool()>& ready, TimePoint deadline) override MUSTER_REQUIRES(mutex());
  void changed(base::Lock& lock) override MUSTER_REQUIRES(mutex());
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

  Actor* current() MUSTER_REQUIRES(mutex());
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
