#include "rank_output.h"

#include <unistd.h>

#include <algorithm>

namespace muster::launcher {
namespace {

constexpr size_t kTailLines = 10;                 // lines kept for the message about a failure
constexpr size_t kTailWidth = 500;                // limit on a kept line in bytes
constexpr size_t kLongestLine = size_t{1} << 16;  // longer lines are split, so that a rank cannot fill the memory

/// Recognizes a stack frame: LibTorch prints some thirty of them after the text of an exception.
bool is_frame(std::string_view line) {
  constexpr std::string_view kStart = "frame #";
  return line.starts_with(kStart) && line.size() > kStart.size() && line[kStart.size()] >= '0' &&
         line[kStart.size()] <= '9' && line.find(": ") != line.npos;
}

}  // namespace

void Tail::add(std::string_view line) {
  if (is_frame(line)) return;
  lines_.emplace_back(line.substr(0, kTailWidth));
  if (lines_.size() > kTailLines) lines_.pop_front();
}

void RankLog::add(const Screen* shown_on, std::string_view bytes) {
  if (!file_ || bytes.empty()) return;
  const bool breaks = !at_line_start_ && last_ != shown_on;
  const auto text = (breaks ? "\n" : "") + std::string(bytes);
  [[maybe_unused]] auto written = write(file_.get(), text.data(), text.size());
  at_line_start_ = bytes.back() == '\n';
  last_ = shown_on;
}

void RankLog::say(std::string_view line) { add(nullptr, std::string(line) + "\n"); }

void RankOutput::add(std::string_view bytes) {
  if (setup_.log) setup_.log->add(setup_.screen, bytes);
  for (size_t at = 0; at < bytes.size();) {
    size_t special = std::min(bytes.find_first_of("\r\n", at), bytes.size());
    if (special > at) {
      if (returned_) line_.clear();
      returned_ = false;
      line_ += bytes.substr(at, special - at);
      at = special;
      if (line_.size() > kLongestLine) end_line();
      continue;
    }
    if (bytes[at++] == '\n') end_line();
    else returned_ = true;
  }
  show();
}

void RankOutput::finish() {
  if (!line_.empty()) {
    if (setup_.live) setup_.screen->set_live("");
    setup_.screen->add_unfinished(setup_.prefix, line_);
    setup_.tail->add(line_);
  }
  line_.clear();
}

void RankOutput::end_line() {
  if (setup_.live) setup_.screen->set_live("");
  setup_.screen->add_line(setup_.prefix, line_);
  setup_.tail->add(line_);
  line_.clear();
  returned_ = false;
}

void RankOutput::show() {
  if (setup_.live) setup_.screen->set_live(line_.empty() ? "" : setup_.prefix + line_);
}

}  // namespace muster::launcher
