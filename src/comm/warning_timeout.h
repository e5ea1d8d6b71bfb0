#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace muster::comm {

/// A rank that waits for other ranks reports it after the first of these times, and then at intervals of the second.
inline constexpr std::chrono::milliseconds kFirstWord{5000}, kLaterWords{30000};

/// A time-out in parts; after each part the waiting code may report that it waits.
class WarningTimeout {
 public:
  explicit WarningTimeout(std::chrono::milliseconds timeout);
  /// The length of the next part.
  std::chrono::milliseconds next();
  /// What is left of it, at least a millisecond.
  std::chrono::milliseconds left() const;
  bool over() const { return Clock::now() >= end_; }
  double waited_seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
  Clock::time_point end_;
  std::chrono::milliseconds part_ = kFirstWord;
};

/// Warns while it exists, for waits that cannot be divided into parts.
class Reminder {
 public:
  /// `words` is called with the seconds waited, on a thread of the reminder.
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

}  // namespace muster::comm
