#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace muster {

/// How a progress bar is shown.
struct ProgressOptions {
  enum class Style { automatic, live, lines, silent };
  /// What one unit is called in the rate, such as "images".
  std::string unit = "steps";
  /// Lines printed per pass if the bar is not live.
  int lines = 4;
  std::FILE* stream = stdout;
  /// automatic: live on a terminal, or under `muster run` on one (MUSTER_TERMINAL=1); else lines.
  Style style = Style::automatic;
};

/// The line of a progress bar as text, for a width of `columns`; pure, so that it can be tested.
/// Times are in seconds; `note` is shown as it is.
std::string progress_line(std::string_view title, int64_t done, int64_t total, double seconds, std::string_view unit,
                          std::string_view note, int columns);

/// Shows the progress of one pass of long work: on a terminal a bar redrawn at most ten times a second, elsewhere a few
/// plain lines. Thread safety: one thread at a time.
class Progress {
 public:
  Progress(std::string title, int64_t total, ProgressOptions options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Counts `count` more units as done. `note` is shown after the bar, such as "loss 0.123".
  void advance(int64_t count, std::string_view note = {});
  /// Shows the final state. The destructor calls it too; a second call does nothing.
  void finish();

 private:
  void show(bool last);

  std::string title_;
  int64_t total_;
  ProgressOptions options_;
  bool live_;
  bool finished_ = false;
  int64_t done_ = 0;
  int64_t shown_ = 0;  // units done when the last plain line was printed
  std::string note_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace muster
