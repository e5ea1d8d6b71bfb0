#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "rank_output.h"
#include "screen.h"

namespace muster::launcher {

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
  Screen* error_screen() { return err_ ? err_.get() : &out_; }

  std::unique_ptr<Screen> err_;  // for stderr; empty if stdout is the same file, to keep the order of lines
  std::deque<RankLog> logs_;     // log files; a deque, since streams point at its elements
  int master_ = -1;
  Screen out_;
  Setup setup_;
  std::vector<Stream> streams_;
  std::deque<Tail> tails_;
};

}  // namespace muster::launcher
