#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <c10/core/Device.h>

#include "comm/cause_exchange.h"

namespace muster::comm {

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

  std::mutex mutex_;
  std::vector<Watched*> groups_;
  std::optional<DeviceCause> cause_;
  std::thread thread_;
};

}  // namespace muster::comm
