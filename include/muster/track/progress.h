#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster {

/// How a progress bar is shown.
struct ProgressOptions {
  enum class Style { automatic, live, lines };
  /// Lines printed per pass if the bar is not live. If the total is unknown, lines come after 1, 2, 4, 8... units.
  int lines = 4;
  /// Show nothing.
  bool quiet = false;
  std::FILE* stream = stderr;
  /// automatic: live on a terminal, or under `muster run` on one (MUSTER_TERMINAL=1); else lines.
  Style style = Style::automatic;
  /// The name of a unit in the rate, such as "images".
  std::string unit = "steps";
};

/// Returns the line of a progress bar, for a width of `columns`. A pure function, so that it can be tested.
/// Times are in seconds; `note` is shown unchanged. A negative total means unknown. `skipped`: the number of units that
/// were done before; the rate excludes them.
std::string progress_line(std::string_view title, int64_t done, int64_t total, double seconds, std::string_view unit,
                          std::string_view note, int columns, int64_t skipped = 0);

/// Shows the progress of one pass of long work: on a terminal a bar redrawn at most ten times a second, elsewhere a few
/// plain lines. Thread safety: one thread at a time.
class Progress {
 public:
  /// A negative total means unknown: the line then shows no share and no time left.
  Progress(std::string title, int64_t total, ProgressOptions options = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  /// Counts `count` more units as done. `note` is shown after the bar, such as "loss 0.123".
  void advance(int64_t count, std::string_view note = {});
  /// Whether advance(count) would draw or print, so that it is worth setting metrics first.
  bool shows_after(int64_t count) const;
  /// Shows a metric after the bar until it is set again. Metrics appear in the order of their first calls.
  void set(std::string_view name, double value);
  void set(std::string_view name, std::string_view text);
  /// Counts units that were done before this pass began, such as those before the position of a checkpoint.
  void skip(int64_t count);
  /// Shows the final state. The destructor calls it too; a second call does nothing.
  void finish();

 private:
  bool due(int64_t done) const;
  void show(bool last);

  std::string title_;
  int64_t total_;
  ProgressOptions options_;
  bool live_;
  bool finished_ = false;
  int64_t done_ = 0;
  int64_t shown_ = 0;    // units done when the last plain line was printed
  int64_t skipped_ = 0;  // units done before this pass
  std::vector<std::pair<std::string, std::string>> metrics_;
  std::string note_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
};

}  // namespace muster
