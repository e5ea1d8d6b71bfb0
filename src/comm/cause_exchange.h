#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/device_cause.h"

namespace muster::comm {

/// Finds one cause with the other ranks of the job, through its store: the first rank with a suspicion asks all others
/// for their flight recorders, and says what the cause is. A call of the store whose server is frozen takes at least
/// the time-out, so a thread of its own makes these calls, and is left behind if need be. Thread-safe.
class CauseExchange {
 public:
  struct Setup {
    c10::intrusive_ptr<c10d::Store> store;  ///< this object's alone: a connection, and names, of its own
    StoreServer server;
    int rank, size;
    std::shared_ptr<FlightRecorder> flight_recorder;
  };
  /// Its thread holds it, until leave() was called and the store has answered.
  static std::shared_ptr<CauseExchange> start(Setup setup);

  /// To be called once. wait() has a cause within kBound then, whatever the store does.
  void suspect(DeviceSuspicion suspicion);
  /// Waits up to `time` for the cause, by this rank's suspicion or another one's.
  std::optional<DeviceCause> wait(std::chrono::milliseconds time);
  /// Ends all waits. Returns within kLeave. To be called once, and before the last owner goes.
  void leave();
  bool has_left() const;

  static constexpr std::chrono::milliseconds kBound{1500}, kLeave{500};

 private:
  using Clock = std::chrono::steady_clock;
  explicit CauseExchange(Setup setup) : setup_(std::move(setup)) {}

  // Of the thread. All throw when this rank leaves, and what the store throws.
  void run();
  std::optional<DeviceSuspicion> wait_for_suspicion();
  DeviceCause agree(const std::optional<DeviceSuspicion>& own);
  DeviceCause ask_all(const DeviceSuspicion& own);
  std::optional<DeviceCause> answer();
  /// For a rank whose process may hold the store: keeps it alive until the others have read the cause.
  void stay_until_known();
  bool wait_for(const std::vector<std::string>& keys, Clock::time_point until);
  void rest(std::chrono::milliseconds time);
  /// Calls the store.
  template <class F>
  auto call(F&& function);
  void set(const std::string& key, const std::string& value);

  void finish(std::optional<DeviceCause> cause, bool lost_store);
  DeviceCause own_cause(Clock::time_point now) const;

  const Setup setup_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool leaves_ = false, ended_ = false, store_is_lost_ = false;
  std::optional<DeviceSuspicion> suspicion_;
  Clock::time_point suspected_;
  std::optional<Clock::time_point> called_;  ///< when the call of the store began that is under way
  std::optional<DeviceCause> cause_;
};

}  // namespace muster::comm
