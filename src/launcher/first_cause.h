#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "child.h"

namespace muster::launcher {

/// The first failure of a rank.
struct FirstCause {
  std::chrono::milliseconds after{0};  ///< since the start of the job
  End end;
  int local_rank = 0;
  int rank = 0;
};

/// The likeliest first cause among ranks found failed at one moment: a crash or a kill before an exit code, an exit code
/// before an abort (an exception nobody caught, often the echo of another rank's end), then the lowest rank.
/// Requires: not empty.
FirstCause choose_cause(const std::vector<FirstCause>& failed);

/// The lines about it: "rank 1 exited with code 3 after 0.2 s ...", then the rank's last lines, if they are known.
std::vector<std::string> describe(const FirstCause& cause, const std::deque<std::string>* last_lines);

}  // namespace muster::launcher
