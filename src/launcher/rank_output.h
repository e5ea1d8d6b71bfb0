#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "screen.h"

namespace muster::launcher {

/// The last lines of a rank without LibTorch's stack frames, for the message about its failure.
class Tail {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::deque<std::string> lines_;
};

/// The log file with everything that a rank writes, unchanged. A stream starts a new line if another stream has not
/// ended its line.
class RankLog {
 public:
  /// Without a file, nothing is written.
  explicit RankLog(Descriptor file) : file_(std::move(file)) {}
  /// `shown_on` identifies the stream.
  void add(const Screen* shown_on, std::string_view bytes);
  /// Writes a message of the launcher.
  void say(std::string_view line);

 private:
  bool at_line_start_ = true;
  Descriptor file_;
  const Screen* last_ = nullptr;  // screen of the stream that wrote last
};

/// One stream of one rank: takes bytes and passes whole lines to a screen. A carriage return restarts the line. A live
/// stream on a terminal shows this as it happens; other streams write only the final content of the line.
class RankOutput {
 public:
  struct Setup {
    RankLog* log = nullptr;  ///< receives the bytes unchanged
    bool live = false;       ///< true: show unfinished lines
    std::string prefix;
    Screen* screen = nullptr;
    Tail* tail = nullptr;
  };
  explicit RankOutput(Setup setup) : setup_(std::move(setup)) {}

  void add(std::string_view bytes);
  /// Ends the stream: writes an unfinished line.
  void finish();

 private:
  void end_line();
  void show();

  std::string line_;
  bool returned_ = false;  // true if the last byte was a carriage return
  Setup setup_;
};

}  // namespace muster::launcher
