#include "screen.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace muster::launcher {
namespace {

constexpr size_t kFull = size_t{1} << 20;  // bytes of waiting output at which ranks must wait
constexpr size_t kCertain = 4096;          // PIPE_BUF in bytes: the least that a writable pipe accepts
constexpr std::string_view kEraseLine = "\r\x1b[K";

bool writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT);
}

}  // namespace

Screen::Screen(int fd) : fd_(fd), terminal_(isatty(fd) == 1) {}

bool Screen::full() const noexcept { return buffer_.size() > kFull; }

void Screen::begin_line() {
  if (!live_.empty()) buffer_ += kEraseLine;
  else if (!at_line_start_) buffer_ += '\n';
  at_line_start_ = true;
}

void Screen::add_line(std::string_view prefix, std::string_view line) {
  begin_line();
  buffer_.append(prefix).append(line) += '\n';
  buffer_ += live_;
}

void Screen::add_unfinished(std::string_view prefix, std::string_view line) {
  if (!prefix.empty() || !live_.empty()) return add_line(prefix, line);
  begin_line();
  buffer_ += line;
  at_line_start_ = false;
}

void Screen::set_live(std::string text) {
  if (text == live_) return;
  begin_line();
  buffer_ += text;
  live_ = std::move(text);
}

void Screen::flush() {
  do {
    ssize_t written = write(fd_, buffer_.data(), std::min(buffer_.size(), kCertain));
    if (written < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // The output has lost its reader: the ranks continue, and the output is dropped.
    if (written < 0) return buffer_.clear();
    buffer_.erase(0, static_cast<size_t>(written));
  } while (!buffer_.empty() && writable(fd_));
}

}  // namespace muster::launcher
