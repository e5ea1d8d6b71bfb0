#pragma once

#include <chrono>

namespace muster::trainer {

/// Measures how long fit() has run, and the time since the last validation. Thread safety: one thread at a time.
class RunClock {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Span = std::chrono::milliseconds;

  /// Starts the clock of fit(). `earlier`: running time before the checkpoint from which it resumes.
  void begin(Time now, Span earlier = {}) { began_ = validated_ = now, earlier_ = earlier; }
  void note_validation(Time now) { validated_ = now; }
  Span elapsed(Time now) const { return earlier_ + std::chrono::duration_cast<Span>(now - began_); }
  Span since_validation(Time now) const { return std::chrono::duration_cast<Span>(now - validated_); }
  static Time now() { return std::chrono::steady_clock::now(); }

 private:
  Time began_ = {}, validated_ = {};
  Span earlier_ = {};
};

}  // namespace muster::trainer
