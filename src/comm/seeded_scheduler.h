#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "comm/wait_policy.h"

namespace muster::comm {

/// Runs threads one at a time, in an order drawn from a seed: at every wait and pause it chooses the next thread among
/// those that can proceed. One seed always gives one order, however the system schedules threads. No thread sleeps: if
/// none can proceed, the earliest deadline of all threads expires at once. A thread that blocks in any other way keeps
/// its turn, so it must not wait for another thread of the schedule.
class SeededScheduler final : public WaitPolicy {
 public:
  explicit SeededScheduler(uint64_t seed);

  bool wait(Lock& lock, const std::function<bool()>& ready, TimePoint deadline) override;
  void changed(Lock& lock) override;
  void pause() override;
  std::thread start_thread(std::function<void()> body) override;
  void join(std::thread& thread) override;

  /// Lets the threads started so far begin. None of them runs earlier.
  void begin();

 private:
  struct Actor {
    const std::function<bool()>* ready = nullptr;  ///< when the thread can go on; null: at any time
    TimePoint deadline = TimePoint::max();
    bool waits = true;
    bool ended = false;
    bool late = false;
    uint32_t weight = 1;  ///< weight in the draw; slow threads have a smaller one
    std::condition_variable turn;
  };

  Actor* current();
  void stay_on_core() const;
  void give_turn();
  void await_turn(Lock& lock, Actor& actor);

  // All guarded by mutex().
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::map<std::thread::id, Actor*> threads_;
  Actor* running_ = nullptr;
  bool begun_ = false;
  std::condition_variable outside_;
  const int core_;  ///< the core on which all threads run
};

}  // namespace muster::comm
