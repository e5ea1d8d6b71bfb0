#pragma once

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

class CauseExchange;

/// Ends groups whose operations on a device do not end, on all ranks of the job and with one cause. Operations on a
/// device have no timeout of their own, since the host does not wait for them, and a rank that has called no operation
/// cannot notice that another one waits. So a thread of each rank checks its groups, and looks for what other ranks
/// have found. If the store is gone or does not answer, each rank reports its own suspicion as the cause. Thread-safe.
/// Why: docs/decisions/0152-a-watch-over-operations-of-a-device.md.
class DeviceWatchdog {
 public:
  struct Setup {
    c10::intrusive_ptr<c10d::Store> store;  ///< a connection and key names that only this object uses
    StoreServer server;
    int rank, size;
    std::shared_ptr<FlightRecorder> flight_recorder;
  };
  /// `device` becomes current in the object's thread; otherwise that thread would open a context on the first device.
  DeviceWatchdog(Setup setup, std::optional<at::Device> device);
  /// Waits for the store no longer than half a second.
  ~DeviceWatchdog();
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  void add(Group& group);
  /// Removes the group. When this returns, the watchdog no longer uses it.
  void remove(Group& group);

  /// The age of an operation at which the device is asked about it.
  static std::chrono::milliseconds query_after(std::chrono::milliseconds timeout);

 private:
  void run();
  std::optional<DeviceSuspicion> suspicion();
  void end_all(const DeviceCause& cause);

  const std::optional<at::Device> device_;
  const std::shared_ptr<CauseExchange> exchange_;

  base::Mutex mutex_;
  std::vector<Group*> groups_ MUSTER_GUARDED_BY(mutex_);
  std::optional<DeviceCause> cause_ MUSTER_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace muster::comm
