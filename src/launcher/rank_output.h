#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "descriptor.h"
#include "screen.h"

namespace muster::launcher {

/// The last lines of a rank, for the message about its failure, without LibTorch's lists of stack frames.
class Tail {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::deque<std::string> lines_;
};

/// The file with all that a rank writes, as it is; a stream begins a new line where another one has not ended its own.
class RankLog {
 public:
  /// Nothing is written without a file.
  explicit RankLog(Descriptor file) : file_(std::move(file)) {}
  /// `shown_on` tells the rank's streams apart.
  void add(const Screen* shown_on, std::string_view bytes);
  /// A line of the launcher's own.
  void say(std::string_view line);

 private:
  bool at_line_start_ = true;
  Descriptor file_;
  const Screen* last_ = nullptr;   // of the stream that wrote last
};

/// One stream of one rank: takes bytes, gives whole lines to a screen.
/// A carriage return starts the line anew. On the terminal of a live stream that is shown as it happens; elsewhere only
/// what would stand in the line at its end is written.
class RankOutput {
 public:
  struct Setup {
    RankLog* log = nullptr;  ///< gets the bytes as they are
    bool live = false;   ///< shows unfinished lines
    std::string prefix;
    Screen* screen = nullptr;
    Tail* tail = nullptr;
  };
  explicit RankOutput(Setup setup) : setup_(std::move(setup)) {}

  void add(std::string_view bytes);
  /// The stream has ended: an unfinished line is written.
  void finish();

 private:
  void end_line();
  void show();

  std::string line_;
  bool returned_ = false;  // a carriage return was the last byte
  Setup setup_;
};

}  // namespace muster::launcher
