#pragma once

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "muster/device/detail/order.h"

namespace muster::device {

/// Collects the sites that a test passes while it lives, and leaves one of them out. One at a time.
class SiteFilter {
 public:
  SiteFilter() {
    leave_out("");
    set_order_filter(passes);
  }
  SiteFilter(const SiteFilter&) = delete;
  ~SiteFilter() { set_order_filter(nullptr); }

  /// "": none. Those that were passed before are forgotten.
  static void leave_out(const std::string& site) {
    const std::lock_guard lock(mutex);
    left_out = site;
    known.clear();
  }
  static std::set<std::string> passed() {
    const std::lock_guard lock(mutex);
    return known;
  }

 private:
  static bool passes(const Site& site, Ordering) {
    const std::lock_guard lock(mutex);
    known.insert(site.name);
    return left_out != site.name;
  }

  inline static std::mutex mutex;
  inline static std::set<std::string> known;
  inline static std::string left_out;
};

/// `noticed(site)`: in how many runs it shows that the site is missing: in none if the site is there for speed.
template <class Noticed>
void expect_each_needed(const std::set<std::string>& sites, const std::set<std::string>& of_speed, Noticed noticed) {
  for (const auto& site : sites) {
    const int failures = noticed(site);
    std::printf("without \"%s\": %d failures\n", site.c_str(), failures);
    if (of_speed.contains(site)) EXPECT_EQ(failures, 0) << site;
    else EXPECT_GT(failures, 0) << site;
  }
}

}  // namespace muster::device
