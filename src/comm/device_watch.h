#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/device_ledger.h"

namespace muster::comm {

/// Why a rank believes that a group's operations on a device will not end.
struct DeviceSuspicion {
  std::string group;
  std::vector<int> ranks;  ///< the group's, in the job
  std::string backend;
  std::optional<Header> operation{};  ///< the one that has not ended
  double seconds = 0;                 ///< since when
  std::string error{};                ///< what the backend says; empty: nothing
};

/// What ended the groups: on all ranks the same.
struct DeviceCause {
  std::string id;
  std::string text;
  int rank = -1;  ///< of the job, that caused it; -1: none is known
};

/// What held an operation up, found by the ranks' ledgers. `operations`: operations_of() the group of the ranks that
/// have answered.
DeviceCause find_cause(const DeviceSuspicion& suspicion, int own_rank, const std::map<int, std::string>& operations);

/// Ends groups whose operations on a device do not end, on all ranks of the job and with one cause. Operations on a
/// device have no time-out of their own, since the host does not wait for them, and a rank that has called none cannot
/// notice that another one waits. So a thread of each rank looks at its groups and into the job's store. The first rank
/// with a suspicion asks all others for their ledgers, and says what the cause is. Where the store is gone each rank
/// speaks for itself. Thread-safe.
class DeviceWatch {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    /// Something, once this group's time-out has passed, or its backend has failed.
    virtual std::optional<DeviceSuspicion> suspicion(std::chrono::steady_clock::time_point now) = 0;
    /// The group's operations end with this cause.
    virtual void end(const DeviceCause& cause) = 0;
  };

  /// `store` is this object's alone: a connection, and names, of its own.
  /// `device` is current in the object's thread, which would open another one otherwise.
  DeviceWatch(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::optional<at::Device> device,
              std::shared_ptr<DeviceLedger> ledger);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  void add(Watched& group);
  /// Returns when nothing of this object uses the group any more.
  void remove(Watched& group);

  /// How old an operation becomes before the device is asked about it.
  static std::chrono::milliseconds patience(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  std::optional<DeviceSuspicion> suspicion();
  bool is_asked();
  /// The cause that all ranks get. With a suspicion this rank may be the one that says it.
  DeviceCause agree(const std::optional<DeviceSuspicion>& suspicion);
  DeviceCause ask_all(const DeviceSuspicion& suspicion);
  void answer();
  std::optional<DeviceCause> wait_for_cause();
  /// Whose process may run the store: it stays until the others know.
  void stay_until_known();
  bool wait_for(const std::string& key, Clock::time_point until);
  /// Returns whether the watch ends.
  bool pause(std::chrono::milliseconds time);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, size_;
  const std::optional<at::Device> device_;
  const std::shared_ptr<DeviceLedger> ledger_;
  bool store_is_lost_ = false;  ///< of the thread

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stops_ = false;
  std::vector<Watched*> groups_;
  std::optional<DeviceCause> cause_;
  std::thread thread_;
};

}  // namespace muster::comm
