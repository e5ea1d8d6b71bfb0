#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "muster/device/detail/order.h"
#include "runtime/device_course.h"

namespace muster::testing {

/// The site of the one wait that a step under loss scaling has.
inline constexpr const char* kWaitForFlag = "optimizer: the host reads the flag of the step before";

using Waits = std::map<std::string, int64_t>;

/// Counts the host's waits by the name of their site while it lives. One at a time.
class WaitsBySite {
 public:
  WaitsBySite() {
    forget();
    device::set_order_filter(count);
  }
  WaitsBySite(const WaitsBySite&) = delete;
  ~WaitsBySite() { device::set_order_filter(nullptr); }

  static void forget() {
    const std::lock_guard lock(mutex);
    waits.clear();
  }
  static Waits counted() {
    const std::lock_guard lock(mutex);
    return waits;
  }

 private:
  static bool count(const device::Site& site, device::Ordering what) {
    const std::lock_guard lock(mutex);
    if (what == device::Ordering::host_wait) ++waits[site.name];
    return true;
  }

  inline static std::mutex mutex;
  inline static Waits waits;
};

/// The waits between begin() and end(), as the simulated accelerator names them and by site. Requires: a WaitsBySite.
struct CountedWaits {
  Waits by_cause, by_site;
  static void begin() {
    sim::reset_stats();
    WaitsBySite::forget();
  }
  void end() {
    by_cause = sim::stats().host_waits;
    by_site = WaitsBySite::counted();
  }
};

}  // namespace muster::testing
