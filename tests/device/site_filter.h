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

/// A row of the table of sites: what fails without one; empty: nothing.
inline void print_need(const std::string& site, std::string what) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto cut = what.find('(');  // a race goes on with where the operator was called
  if (what.size() > 120) what.resize(cut < 200 ? cut : 120);
  std::printf("| %s | %s | %s.%s |\n", site.c_str(), what.empty() ? "nothing: it is there for speed" : what.c_str(),
              test->test_suite_name(), test->name());
}

/// `noticed(site)`: in how many runs it shows that the site is missing: in none if the site is there for speed.
template <class Noticed>
void expect_each_needed(const std::set<std::string>& sites, const std::set<std::string>& of_speed, Noticed noticed) {
  for (const auto& site : sites) {
    const int failures = noticed(site);
    print_need(site, failures == 0 ? "" : std::to_string(failures) + " failures");
    if (of_speed.contains(site)) EXPECT_EQ(failures, 0) << site;
    else EXPECT_GT(failures, 0) << site;
  }
}

}  // namespace muster::device
