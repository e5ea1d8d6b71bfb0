#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"

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
  void end_line(bool unfinished = false);

  std::string line_;
  bool returned_ = false;  // true if the last byte was a carriage return
  Setup setup_;
};

/// Forwards the output of all ranks of this node from their pipes to the launcher's stdout and stderr and to log files.
/// If stdout is a terminal, rank 0 of the node gets a separate terminal, so that its progress is shown live.
class Console {
 public:
  struct Setup {
    bool append = false;  ///< true: append to existing log files
    std::string log_dir;  ///< folder of the log files; empty: no files
    bool prefix = true;
  };
  /// The ends that a rank writes to; the launcher closes them once the rank runs.
  struct Ends {
    Descriptor error, output;
  };

  explicit Console(Setup setup);

  /// Opens the streams of a rank; local ranks in order, from 0. Throws: LaunchError (MU034, MU037).
  Ends open_rank(int rank);
  /// Sets the size of rank 0's terminal to the real terminal's.
  void resize() const noexcept;

  /// Appends the descriptors to poll to `entries`.
  void add_to(std::vector<pollfd>& entries) const;
  /// Reads and writes what poll() found ready.
  void handle(const std::vector<pollfd>& entries);
  /// Reads what is available now, without waiting.
  void read_all();
  /// Writes unfinished lines; later output is lost.
  void finish();

  bool reading() const noexcept;  ///< true while the stream of some rank has not ended
  bool writing() const noexcept;  ///< true while output waits to be written
  const Tail& tail(int local_rank) const { return tails_.at(static_cast<size_t>(local_rank)); }
  /// Prints a message of the launcher on stderr.
  void say(std::string_view line);
  /// Writes a message of the launcher to the log file of a rank, if there is one.
  void say_in_log(int local_rank, std::string_view line) { logs_.at(static_cast<size_t>(local_rank)).say(line); }

 private:
  struct Stream {
    Descriptor from;
    RankOutput output;
  };

  Descriptor open_log(int rank) const;
  /// Adds a stream and returns the rank's end of it.
  Descriptor add_stream(RankOutput::Setup setup, bool terminal);
  void read(Stream& stream);

  std::unique_ptr<Screen> err_;  // for stderr; empty if stdout is the same file, to keep the order of lines
  std::deque<RankLog> logs_;     // log files; a deque, since streams point at its elements
  int master_ = -1;
  Screen out_;
  Setup setup_;
  std::vector<Stream> streams_;
  std::deque<Tail> tails_;
};

}  // namespace muster::launcher
