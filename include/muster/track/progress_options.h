#pragma once

#include <cstdio>
#include <string>

namespace muster {

/// How a progress bar is shown.
struct ProgressOptions {
  enum class Style { automatic, live, lines };
  /// Lines printed per pass if the bar is not live. If the total is unknown, lines come after 1, 2, 4, 8... units.
  int lines = 4;
  /// Show nothing.
  bool quiet = false;
  std::FILE* stream = stderr;
  /// automatic: live on a terminal, or under `muster run` on one (MUSTER_TERMINAL=1); else lines.
  Style style = Style::automatic;
  /// The name of a unit in the rate, such as "images".
  std::string unit = "steps";
};

}  // namespace muster
