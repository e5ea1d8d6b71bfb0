#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "child.h"
#include "console.h"
#include "muster/base/detail/environment.h"

namespace muster::launcher {

/// The data to start one rank.
struct RankStart {
  SpawnAttributes attributes;
  Environment environment;
  int rank = 0;
};

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
  void execute(const RankStart& first);
  void check_variables(const std::vector<RankStart>& ranks);
  std::vector<Child> fork_ranks(const std::vector<RankStart>& ranks);
  /// Returns the forked processes, even if some could not be forked. Each waits for a byte from `start_fd` before it
  /// runs main().
  std::vector<pid_t> request(const std::vector<RankStart>& ranks, const std::vector<cluster::Report>& reports,
                             int start_fd);
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
