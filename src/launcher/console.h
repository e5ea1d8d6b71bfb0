#pragma once

#include <poll.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "descriptor.h"
#include "rank_output.h"
#include "screen.h"

namespace muster::launcher {

/// All output of all ranks of this node, from their pipes to the launcher's stdout and stderr and to log files.
/// Where stdout is a terminal, rank 0 of the node gets a terminal of its own, so that it shows its progress live.
class Console {
 public:
  struct Setup {
    std::string log_dir;  ///< empty: no files
    bool prefix = true;
  };
  /// What one rank writes to; closed by the launcher once the rank runs.
  struct Ends {
    Descriptor error, output;
  };

  explicit Console(Setup setup);

  /// Local ranks are opened in order, from 0. Throws: LaunchError (MU034, MU037).
  Ends open_rank(int rank);
  /// Tells the terminal of rank 0 how large the real one is.
  void resize() const noexcept;

  /// What must be polled, appended to `entries`.
  void add_to(std::vector<pollfd>& entries) const;
  /// Reads and writes what poll() found ready.
  void handle(const std::vector<pollfd>& entries);
  /// Reads what is there at this moment, without waiting.
  void read_all();
  /// Unfinished lines are written; what comes later is lost.
  void finish();

  bool reading() const noexcept;   ///< some rank's stream has not ended
  bool writing() const noexcept;   ///< something waits to be written
  const Tail& tail(int local_rank) const { return tails_.at(static_cast<size_t>(local_rank)); }
  /// A line of the launcher's own, on stderr.
  void say(std::string_view line);
  /// A line of the launcher's own in the log file of a rank, if there is one.
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

  std::unique_ptr<Screen> err_;  // none where stderr is the same file as stdout: then lines keep their order
  std::deque<RankLog> logs_;     // deques: streams point at their elements
  int master_ = -1;
  Screen out_;
  Setup setup_;
  std::vector<Stream> streams_;
  std::deque<Tail> tails_;
};

}  // namespace muster::launcher
