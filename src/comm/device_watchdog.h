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

/// Ends groups whose operations on a device do not end, on all ranks of the job and with the same cause. Operations on
/// a device have no time-out of their own, since the host does not wait for them, and a rank that has called none
/// cannot notice that another one waits. So a thread of each rank looks at its groups, and for what other ranks have
/// found. Where the store is gone or does not answer, each rank reports its own suspicion as the cause. Thread-safe.
class DeviceWatchdog {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    /// What is suspected of this group, once its time-out has passed or its backend has failed; nullopt: nothing.
    virtual std::optional<DeviceSuspicion> suspicion(std::chrono::steady_clock::time_point now) = 0;
    /// The group's operations end with this cause.
    virtual void end(const DeviceCause& cause) = 0;
  };

  /// `device` becomes current in the object's thread; otherwise that would open a context on the first device.
  DeviceWatchdog(CauseExchange::Setup setup, std::optional<at::Device> device);
  /// Does not wait for the store longer than CauseExchange::kLeave.
  ~DeviceWatchdog();
  DeviceWatchdog(const DeviceWatchdog&) = delete;
  DeviceWatchdog& operator=(const DeviceWatchdog&) = delete;

  void add(Watched& group);
  /// Returns when nothing of this object uses the group any more.
  void remove(Watched& group);

  /// How old an operation becomes before the device is asked about it.
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
