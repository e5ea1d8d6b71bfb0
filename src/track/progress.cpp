#include "muster/track/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "muster/base/format.h"

namespace muster {
namespace {

std::string clock_text(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole >= 3600) return formatted("{}:{:02d}:{:02d}", whole / 3600, whole / 60 % 60, whole % 60);
  return formatted("{}:{:02d}", whole / 60, whole % 60);
}

std::string rate_text(double rate) {
  if (rate >= 1e6) return formatted("{:.1f}M", rate / 1e6);
  if (rate >= 1e4) return formatted("{:.1f}k", rate / 1e3);
  return rate >= 10 ? formatted("{:.0f}", rate) : formatted("{:.2f}", rate);
}

bool is_live(const ProgressOptions& options) {
  if (options.style != ProgressOptions::Style::automatic) return options.style == ProgressOptions::Style::live;
  const char* under_launcher = std::getenv("MUSTER_TERMINAL");
  return isatty(fileno(options.stream)) == 1 || (under_launcher && std::string_view(under_launcher) == "1");
}

int columns_of(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

constexpr auto kRedraw = std::chrono::milliseconds(100);  // time between two live updates

}  // namespace

std::string progress_line(std::string_view title, int64_t done, int64_t total, double seconds, std::string_view unit,
                          std::string_view note, int columns, int64_t skipped) {
  const bool known = total >= 0;
  const double part = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 1.0;
  const double rate = seconds > 0 ? static_cast<double>(done - skipped) / seconds : 0;
  std::string figures = known ? formatted(" {:3d}%", static_cast<int>(part * 100)) : formatted(" {} {}", done, unit);
  if (!note.empty()) figures += formatted("  {}", note);
  if (rate > 0) figures += formatted("  {} {}/s", rate_text(rate), unit);
  if (!known || done >= total) figures += "  " + clock_text(seconds);
  else if (rate > 0) figures += formatted("  {} left", clock_text(static_cast<double>(total - done) / rate));
  const int room = columns - static_cast<int>(title.size() + figures.size()) - 4;
  const int width = std::clamp(room, 0, 30);
  const int full = static_cast<int>(part * width);
  std::string line(title);
  if (known && width >= 5) line += formatted(" [{}{}]", std::string(full, '#'), std::string(width - full, '.'));
  line += figures;
  return title.empty() ? line.substr(1) : line;
}

Progress::Progress(std::string title, int64_t total, ProgressOptions options)
    : title_(std::move(title)), total_(total), options_(std::move(options)), live_(is_live(options_)),
      start_(std::chrono::steady_clock::now()), drawn_(start_ - kRedraw) {}

Progress::~Progress() { finish(); }

void Progress::set(std::string_view name, double value) { set(name, formatted("{:.4g}", value)); }

void Progress::set(std::string_view name, std::string_view text) {
  const auto known = std::find_if(metrics_.begin(), metrics_.end(), [&](const auto& one) { return one.first == name; });
  if (known != metrics_.end()) known->second = text;
  else metrics_.emplace_back(name, text);
}

void Progress::skip(int64_t count) {
  done_ += count;
  shown_ += count;
  skipped_ += count;
}

void Progress::advance(int64_t count, std::string_view note) {
  done_ += count;
  note_ = note;
  if (options_.quiet || finished_ || !due(done_)) return;
  drawn_ = std::chrono::steady_clock::now();
  shown_ = done_;
  show(false);
}

bool Progress::shows_after(int64_t count) const { return !options_.quiet && !finished_ && due(done_ + count); }

// The last state is shown by finish().
bool Progress::due(int64_t done) const {
  if (total_ >= 0 && done >= total_) return false;
  if (live_) return std::chrono::steady_clock::now() - drawn_ >= kRedraw;
  if (total_ < 0) return done - skipped_ >= 2 * (shown_ - skipped_);
  return (done - shown_) * options_.lines >= total_;
}

void Progress::finish() {
  if (std::exchange(finished_, true) || options_.quiet) return;
  show(true);
}

void Progress::show(bool last) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
  std::string note;
  for (const auto& [name, text] : metrics_) note += (note.empty() ? "" : "  ") + name + " " + text;
  if (!note_.empty()) note += (note.empty() ? "" : "  ") + note_;
  auto line = progress_line(title_, done_, total_, passed.count(), options_.unit, note,
                            live_ ? columns_of(options_.stream) - 1 : 100, skipped_);
  // Live: return to the start of the line, clear it, draw.
  if (live_) line = "\r\x1b[2K" + line + (last ? "\n" : "");
  else line += "\n";
  std::fputs(line.c_str(), options_.stream);
  std::fflush(options_.stream);
}

}  // namespace muster
