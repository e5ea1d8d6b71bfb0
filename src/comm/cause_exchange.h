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

/// Finds one cause together with the other ranks of the job, through its store: the first rank with a suspicion asks
/// all others for their flight recorders, and says what the cause is. A store call takes at least the timeout if the
/// server is frozen, so a dedicated thread makes these calls. It is left behind if it does not end. Thread-safe.
/// Why: docs/decisions/0155-what-hangs-is-left-behind.md.
class CauseExchange {
 public:
  struct Setup {
    c10::intrusive_ptr<c10d::Store> store;  ///< a connection and key names that only this object uses
    StoreServer server;
    int rank, size;
    std::shared_ptr<FlightRecorder> flight_recorder;
  };
  /// The thread keeps the object alive until leave() was called and the store has answered.
  static std::shared_ptr<CauseExchange> start(Setup setup);

  /// Reports a suspicion. Call it once. From then on wait() has a cause within kBound, whatever the store does.
  void suspect(DeviceSuspicion suspicion);
  /// Waits up to `time` for the cause, found by the suspicion of this rank or of another one.
  std::optional<DeviceCause> wait(std::chrono::milliseconds time);
  /// Ends all waits. Returns within kLeave. Call it once, before the last owner is destroyed.
  void leave();
  bool has_left() const;

  static constexpr std::chrono::milliseconds kBound{1500}, kLeave{500};

 private:
  using Clock = std::chrono::steady_clock;
  explicit CauseExchange(Setup setup) : setup_(std::move(setup)) {}

  // Called by the thread. All of them throw when this rank leaves, and what the store throws.
  void run();
  std::optional<DeviceSuspicion> wait_for_suspicion();
  DeviceCause agree(const std::optional<DeviceSuspicion>& own);
  DeviceCause ask_all(const DeviceSuspicion& own);
  std::optional<DeviceCause> answer();
  /// For a rank whose process may serve the store: keeps the store alive until the others have read the cause.
  void stay_until_known();
  bool wait_for(const std::vector<std::string>& keys, Clock::time_point until);
  void rest(std::chrono::milliseconds time);
  /// Makes one call of the store.
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
  std::optional<Clock::time_point> called_;  ///< when the current call of the store began; nullopt between calls
  std::optional<DeviceCause> cause_;
};

}  // namespace muster::comm
