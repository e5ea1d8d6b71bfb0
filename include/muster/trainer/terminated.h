#pragma once

#include <filesystem>

namespace muster {

/// Thrown by fit() after SIGTERM, when every rank has ended its batch and `checkpoint` was saved. Not a std::exception,
/// so that programs that catch and report errors let it pass. It need not be caught: uncaught, it ends the process with
/// exit code 143. See docs/decisions/0108-how-a-signal-ends-training.md.
struct Terminated {
  static constexpr int kExitCode = 143;   ///< 128 + SIGTERM
  std::filesystem::path checkpoint = {};  ///< empty: the signal came after the end of fit()
};

}  // namespace muster
