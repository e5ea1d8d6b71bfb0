#pragma once

#include <functional>

#include "base/descriptor.h"
#include "child.h"
#include "console.h"
#include "muster/base/environment.h"

namespace muster::launcher {

struct ForkReply;

/// The environment of a fork server: a rank's, without the variables that differ between ranks.
Environment fork_server_environment(const Environment& rank);

/// The name of a variable that differs and that a library may have read when the program was loaded. If there is none,
/// a rank with the environment `rank` can be forked from a fork server with the environment `server`.
std::optional<std::string> fixed_difference(const Environment& server, const Environment& rank);

/// The changes for such a rank, in the format of fork_protocol.h. `descriptor_variables` get the numbers of its
/// descriptors.
std::string variable_words(const Environment& server, const Environment& rank,
                           const std::vector<std::string>& descriptor_variables);

/// Whether the file is an executable for this machine that can become a fork server of this launcher: it contains a
/// ForkNote of this version, and runs with the rights of the user who executes it. False if it cannot be read.
bool can_be_fork_server(const std::string& path);

// Why: docs/decisions/0121-ranks-are-forked-before-main.md.

/// Starts the ranks of a program by forking them from one process, its fork server, which has loaded all libraries and
/// waits before main(). The ranks become children of this process, as if it had executed the program once for each of
/// them. They survive the fork server.
/// Thread safety: one thread, always the same.
class ForkServer {
 public:
  /// Called during a wait, and again after the returned time: launchers of other nodes expect heartbeats.
  using OnWait = std::function<std::chrono::milliseconds()>;

  /// Does not execute anything yet. `interrupt` is a descriptor that becomes readable to end a wait for the program.
  ForkServer(const Program& program, int interrupt);

  /// Starts one round of ranks. Returns an empty list if the ranks must be spawned instead; then the debug log has the
  /// reason, and later rounds are not forked either. The first call executes the program, with the streams of the first
  /// rank, which `console` reads.
  /// Throws: LaunchError (MU034) if the program cannot be executed.
  std::vector<Child> start(const std::vector<RankStart>& ranks, Console& console, const OnWait& on_wait = {});

 private:
  void load(const RankStart& first, Console& console);
  std::vector<Child> fork_ranks(const std::vector<RankStart>& ranks);
  /// Returns the forked processes, even if some could not be forked. Each waits for a byte from `start_fd` before it
  /// runs main().
  std::vector<pid_t> request(const std::vector<RankStart>& ranks, const std::vector<cluster::Report>& reports,
                             int start_fd);
  /// The next reply; `failed` with a reason if none comes in `time`, or within `grace` once `interrupt` is readable.
  /// `console` forwards output meanwhile.
  ForkReply receive_reply(std::chrono::milliseconds time, std::chrono::milliseconds grace, Console* console = nullptr);
  void refuse(const std::string& reason);
  void refuse_by_errno(const std::string& what);

  Environment environment_;  // environment of the fork server
  int interrupt_;
  OnWait on_wait_;
  Program program_;
  std::optional<Child> server_;
  Descriptor socket_;
  bool usable_;
};

}  // namespace muster::launcher
