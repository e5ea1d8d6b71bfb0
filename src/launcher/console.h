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

/// Forwards all output of all ranks of this node from their pipes to the launcher's stdout and stderr and to log files.
/// If stdout is a terminal, rank 0 of the node gets a separate terminal, so that it shows its progress live.
class Console {
 public:
  struct Setup {
    bool append = false;  ///< log files keep what they have
    std::string log_dir;  ///< empty: no files
    bool prefix = true;
  };
  /// The ends that one rank writes to; the launcher closes them once the rank runs.
  struct Ends {
    Descriptor error, output;
  };

  explicit Console(Setup setup);

  /// Local ranks are opened in order, from 0. Throws: LaunchError (MU034, MU037).
  Ends open_rank(int rank);
  /// Sets the size of rank 0's terminal to that of the real one.
  void resize() const noexcept;

  /// Appends to `entries` what must be polled.
  void add_to(std::vector<pollfd>& entries) const;
  /// Reads and writes what poll() found ready.
  void handle(const std::vector<pollfd>& entries);
  /// Reads what is available now, without waiting.
  void read_all();
  /// Writes unfinished lines; later output is lost.
  void finish();

  bool reading() const noexcept;  ///< some rank's stream has not ended
  bool writing() const noexcept;  ///< something waits to be written
  const Tail& tail(int local_rank) const { return tails_.at(static_cast<size_t>(local_rank)); }
  /// Prints a line of the launcher on stderr.
  void say(std::string_view line);
  /// Writes a line of the launcher to the log file of a rank, if there is one.
  void say_in_log(int local_rank, std::string_view line) { logs_.at(static_cast<size_t>(local_rank)).say(line); }

 private:
  struct Stream {
    Descriptor from;
    RankOutput output;
  };

  Descriptor open_log(int rank) const;
  /// Returns the end for the rank.
  Descriptor add_stream(RankOutput::Setup setup, bool terminal);
  void read(Stream& stream);
  Screen* error_screen() { return err_ ? err_.get() : &out_; }

  std::unique_ptr<Screen> err_;  // none if stderr is the same file as stdout: then lines keep their order
  std::deque<RankLog> logs_;     // deques: streams point at their elements
  int master_ = -1;
  Screen out_;
  Setup setup_;
  std::vector<Stream> streams_;
  std::deque<Tail> tails_;
};

}  // namespace muster::launcher
