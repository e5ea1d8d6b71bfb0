#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// Records events as spans of time on named tracks. It is off until start(), and nearly free while off.
/// Thread safety: all functions from any thread.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  struct Span {
    std::string name;
    std::string track;  ///< spans of one track share one row of the timeline, nested by time
    Clock::time_point begin, end;
    int64_t bytes = -1;  ///< payload; -1: none
  };

  bool on() const noexcept { return on_.load(std::memory_order_relaxed); }
  /// Clears the recorded spans and starts recording.
  void start();
  void stop() noexcept { on_.store(false, std::memory_order_relaxed); }
  /// Records a span; drops it while the trace is off.
  void add(Span span);
  std::vector<Span> spans() const;

 private:
  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;  // not one of base/mutex.h, which is private
  std::vector<Span> spans_;   // guarded by the mutex
};

/// Records a span from its construction to its destruction. Costs one comparison while the trace is off.
class TraceScope {
 public:
  TraceScope(Trace& trace, std::string_view name, std::string_view track = "main")
      : trace_(trace.on() ? &trace : nullptr), name_(name), track_(track) {
    if (trace_) begin_ = Trace::Clock::now();
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;
  ~TraceScope() {
    if (trace_) trace_->add({std::string(name_), std::string(track_), begin_, Trace::Clock::now()});
  }

 private:
  Trace* trace_;
  std::string_view name_, track_;
  Trace::Clock::time_point begin_;
};

/// The spans as events of Chrome's trace format, separated by commas: rank `rank` is a process, and each track is one
/// of its threads. `origin` becomes time 0. Enclosed in {"traceEvents":[ and ]} they open in chrome://tracing and
/// ui.perfetto.dev.
/// Source: "Trace Event Format", complete events (X) and metadata (M).
std::string chrome_events(const std::vector<Trace::Span>& spans, int rank, Trace::Clock::time_point origin);

}  // namespace muster
