#pragma once

#include <chrono>
#include <memory>
#include <thread>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/mutex.h"
#include "comm/flight_recorder.h"

namespace muster::comm {

/// Why a rank believes that a group's operations on a device will not end.
struct DeviceSuspicion {
  std::string group;
  std::vector<int> ranks;  ///< the ranks of the group, as ranks in the job
  std::string backend;
  std::optional<Header> operation{};  ///< the operation that has not ended
  double seconds = 0;                 ///< how long the operation has been running, in seconds
  std::string error{};                ///< the error that the backend reports; empty: none
};

/// The cause that ended the groups; every rank gets an equal one.
struct DeviceCause {
  std::string id;
  std::string text;
  int rank = -1;  ///< the rank of the job that caused it; -1: unknown
};

/// The process that serves the job's store.
struct StoreServer {
  std::string text;  ///< a clause for messages: "which rank 0 holds"
  int rank = -1;     ///< its rank in the job; -1: not a rank
};

/// Finds what delayed an operation, from the ranks' flight recorders. `operations`: for each rank that has answered,
/// its operations_of() for this group.
DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations);

// The causes that a rank reports if it could not read the other ranks' records.
DeviceCause cause_of_silent_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server,
                                  double silent_seconds);
DeviceCause cause_of_lost_store(const DeviceSuspicion& suspicion, int own_rank, const StoreServer& server);
DeviceCause cause_of_lost_rank_that_asked(int own_rank);

/// The cause as one text, in which it is sent to other ranks.
std::string text_of(const DeviceCause& cause);
DeviceCause cause_of(const std::string& text);

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
  DeviceCause own_cause(Clock::time_point now) const MUSTER_REQUIRES(mutex_);

  const Setup setup_;
  std::thread thread_;

  mutable base::Mutex mutex_;
  base::Condition changed_;
  bool leaves_ MUSTER_GUARDED_BY(mutex_) = false;
  bool ended_ MUSTER_GUARDED_BY(mutex_) = false;
  bool store_is_lost_ MUSTER_GUARDED_BY(mutex_) = false;
  std::optional<DeviceSuspicion> suspicion_ MUSTER_GUARDED_BY(mutex_);
  Clock::time_point suspected_ MUSTER_GUARDED_BY(mutex_);
  /// When the current call of the store began; nullopt between calls.
  std::optional<Clock::time_point> called_ MUSTER_GUARDED_BY(mutex_);
  std::optional<DeviceCause> cause_ MUSTER_GUARDED_BY(mutex_);
};

/// Ends groups whose operations on a device do not end, on all ranks of the job and with one cause. Operations on a
/// device have no timeout of their own, since the host does not wait for them, and a rank that has called no operation
/// cannot notice that another one waits. So a thread of each rank checks its groups, and looks for what other ranks
/// have found. If the store is gone or does not answer, each rank reports its own suspicion as the cause. Thread-safe.
/// Why: docs/decisions/0152-a-watch-over-operations-of-a-device.md.
class DeviceWatchdog {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    /// The suspicion about this group, once its timeout has passed or its backend has failed; nullopt: none.
    virtual std::optional<DeviceSuspicion> suspicion(std::chrono::steady_clock::time_point now) = 0;
    /// Ends the group's operations with this cause.
    virtual void end(const DeviceCause& cause) = 0;
  };

  /// `device` becomes current in the object's thread; otherwise that thread would open a context on the first device.
  DeviceWatchdog(CauseExchange::Setup setup, std::optional<at::Device> device);
  /// Waits for the store no longer than CauseExchange::kLeave.
  ~DeviceWatchdog();
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  void add(Watched& group);
  /// Removes the group. When this returns, the watchdog no longer uses it.
  void remove(Watched& group);

  /// The age of an operation at which the device is asked about it.
  static std::chrono::milliseconds query_after(std::chrono::milliseconds timeout);

 private:
  void run();
  std::optional<DeviceSuspicion> suspicion();
  void end_all(const DeviceCause& cause);

  const std::optional<at::Device> device_;
  const std::shared_ptr<CauseExchange> exchange_;

  base::Mutex mutex_;
  std::vector<Watched*> groups_ MUSTER_GUARDED_BY(mutex_);
  std::optional<DeviceCause> cause_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::comm
