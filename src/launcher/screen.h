#pragma once

#include <string>
#include <string_view>

namespace muster::launcher {

/// One destination of the ranks' output: a terminal, a pipe or a file. It receives whole lines and never blocks, so
/// that a slow reader cannot keep the launcher from watching its ranks.
class Screen {
 public:
  /// Borrows `fd`.
  explicit Screen(int fd);

  /// Adds a finished line; `line` has no newline.
  void add_line(std::string_view prefix, std::string_view line);
  /// Adds the last line of a rank, which has no newline. With a prefix it gets one; without, it stays as it is.
  void add_unfinished(std::string_view prefix, std::string_view line);
  /// Sets the line that a live rank is still writing (a progress bar). It stays at the bottom: finished lines go above
  /// it.
  void set_live(std::string text);

  bool is_terminal() const noexcept { return terminal_; }
  int fd() const noexcept { return fd_; }
  bool pending() const noexcept { return !buffer_.empty(); }
  /// True if so much output is buffered that the ranks should wait.
  bool full() const noexcept;
  /// Writes without blocking. Requires: poll() reported that `fd` is writable.
  void flush();

 private:
  void begin_line();

  std::string buffer_;
  bool at_line_start_ = true;
  int fd_;
  std::string live_;
  bool terminal_;
};

}  // namespace muster::launcher
