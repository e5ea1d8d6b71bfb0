#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "base/descriptor.h"
#include "screen.h"

namespace muster::launcher {

/// The last lines of a rank, for the message about its failure, without LibTorch's stack frames.
class Tail {
 public:
  void add(std::string_view line);
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::deque<std::string> lines_;
};

/// The log file with everything that a rank writes, unchanged. A stream begins a new line if another stream has not
/// ended its own.
class RankLog {
 public:
  /// Without a file nothing is written.
  explicit RankLog(Descriptor file) : file_(std::move(file)) {}
  /// `shown_on` distinguishes the rank's streams.
  void add(const Screen* shown_on, std::string_view bytes);
  /// Writes a line of the launcher.
  void say(std::string_view line);

 private:
  bool at_line_start_ = true;
  Descriptor file_;
  const Screen* last_ = nullptr;  // of the stream that wrote last
};

/// One stream of one rank: takes bytes and passes whole lines to a screen.
/// A carriage return restarts the line. A live stream on a terminal shows this as it happens; other streams write only
/// the final content of the line.
class RankOutput {
 public:
  struct Setup {
    RankLog* log = nullptr;  ///< gets the bytes as they are
    bool live = false;       ///< shows unfinished lines
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
