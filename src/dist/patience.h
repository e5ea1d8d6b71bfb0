#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace muster::dist {

/// Who waits for other ranks says so after the first of these times, and then each time the second one has passed.
inline constexpr std::chrono::milliseconds kFirstWord{5000}, kLaterWords{30000};

/// A time-out in parts, after each of which whoever waits may say so.
class Patience {
 public:
  explicit Patience(std::chrono::milliseconds timeout);
  /// How long to wait now.
  std::chrono::milliseconds next();
  bool over() const { return Clock::now() >= end_; }
  double waited_seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
  Clock::time_point end_;
  std::chrono::milliseconds part_ = kFirstWord;
};

/// Warns while it lives, for waits that cannot be done in parts.
class Reminder {
 public:
  /// `words` gets the seconds that were waited, and is called on a thread of the reminder.
  explicit Reminder(std::function<std::string(double waited_seconds)> words);
  ~Reminder();
  Reminder(const Reminder&) = delete;
  Reminder& operator=(const Reminder&) = delete;

 private:
  void remind();

  std::condition_variable ended_;
  bool end_ = false;  // under the mutex
  std::mutex mutex_;
  std::function<std::string(double)> words_;
  std::thread thread_;  // last: it uses all others
};

}  // namespace muster::dist
