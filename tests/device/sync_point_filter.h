#pragma once

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "device/order.h"

namespace muster::device {

/// Collects the points that a test passes while it lives, and leaves one of them out. One at a time.
class SyncPointFilter {
 public:
  SyncPointFilter() {
    leave_out("");
    set_sync_filter(passes);
  }
  SyncPointFilter(const SyncPointFilter&) = delete;
  ~SyncPointFilter() { set_sync_filter(nullptr); }

  /// "": none. Those that were passed before are forgotten.
  static void leave_out(const std::string& point) {
    const std::lock_guard lock(mutex);
    left_out = point;
    known.clear();
  }
  static std::set<std::string> passed() {
    const std::lock_guard lock(mutex);
    return known;
  }

 private:
  static bool passes(const SyncPoint& point, SyncKind) {
    const std::lock_guard lock(mutex);
    known.insert(point.name);
    return left_out != point.name;
  }

  inline static std::mutex mutex;
  inline static std::set<std::string> known;
  inline static std::string left_out;
};

/// A row of the table of points: what fails without one; empty: nothing.
inline void print_need(const std::string& point, std::string what) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto cut = what.find('(');  // a race goes on with where the operator was called
  if (what.size() > 120) what.resize(cut < 200 ? cut : 120);
  std::printf("| %s | %s | %s.%s |\n", point.c_str(), what.empty() ? "nothing: it is there for speed" : what.c_str(),
              test->test_suite_name(), test->name());
}

/// `noticed(point)`: in how many runs it shows that the point is missing: in none if the point is there for speed.
template <class Noticed>
void expect_each_needed(const std::set<std::string>& points, const std::set<std::string>& of_speed, Noticed noticed) {
  for (const auto& point : points) {
    const int failures = noticed(point);
    print_need(point, failures == 0 ? "" : std::to_string(failures) + " failures");
    if (of_speed.contains(point)) EXPECT_EQ(failures, 0) << point;
    else EXPECT_GT(failures, 0) << point;
  }
}

}  // namespace muster::device
