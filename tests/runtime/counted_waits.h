#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "device/order.h"
#include "runtime/device_course.h"

namespace muster::testing {

/// The point of the one wait that a step under loss scaling has.
inline constexpr const char* kWaitForFlag = "optimizer: the host reads the flag of the step before";

using Waits = std::map<std::string, int64_t>;

/// Counts the host's waits by the name of their point while it lives. One at a time.
class WaitsBySyncPoint {
 public:
  WaitsBySyncPoint() {
    forget();
    device::set_sync_filter(count);
  }
  WaitsBySyncPoint(const WaitsBySyncPoint&) = delete;
  ~WaitsBySyncPoint() { device::set_sync_filter(nullptr); }

  static void forget() {
    const std::lock_guard lock(mutex);
    waits.clear();
  }
  static Waits counted() {
    const std::lock_guard lock(mutex);
    return waits;
  }

 private:
  static bool count(const device::SyncPoint& point, device::SyncKind what) {
    const std::lock_guard lock(mutex);
    if (what == device::SyncKind::host_wait) ++waits[point.name];
    return true;
  }

  inline static std::mutex mutex;
  inline static Waits waits;
};

/// The waits between begin() and end(), as the simulated accelerator names them and by point. Requires: a
/// WaitsBySyncPoint.
struct CountedWaits {
  Waits by_cause, by_sync_point;
  static void begin() {
    sim::reset_stats();
    WaitsBySyncPoint::forget();
  }
  void end() {
    by_cause = sim::stats().host_waits;
    by_sync_point = WaitsBySyncPoint::counted();
  }
};

}  // namespace muster::testing
