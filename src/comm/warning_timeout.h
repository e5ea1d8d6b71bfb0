#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace muster::comm {

/// Milliseconds after which a rank that waits for other ranks reports it: the first time, and the interval from then
/// on.
inline constexpr std::chrono::milliseconds kFirstWord{5000}, kLaterWords{30000};

/// Divides a timeout into parts. After each part the waiting code may report that it waits.
class WarningTimeout {
 public:
  explicit WarningTimeout(std::chrono::milliseconds timeout);
  /// The length of the next part.
  std::chrono::milliseconds next();
  /// What is left of the timeout, at least a millisecond.
  std::chrono::milliseconds left() const;
  bool over() const { return Clock::now() >= end_; }
  double waited_seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;

  Clock::time_point begin_ = Clock::now();
  Clock::time_point end_;
  std::chrono::milliseconds part_ = kFirstWord;
};

/// Warns while it exists. For waits that cannot be divided into parts.
class Reminder {
 public:
  /// `words` is called with the seconds waited so far, on a thread of this object.
  explicit Reminder(std::function<std::string(double waited_seconds)> words);
  ~Reminder();
  Reminder(const Reminder&) = delete;
  Reminder& operator=(const Reminder&) = delete;

 private:
  void remind();

  std::condition_variable ended_;
  bool end_ = false;  // guarded by the mutex
  std::mutex mutex_;
  std::function<std::string(double)> words_;
  std::thread thread_;  // last, because it uses all other members
};

}  // namespace muster::comm
