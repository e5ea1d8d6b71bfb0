#pragma once

#include <filesystem>

namespace muster {

/// What fit() throws after SIGTERM: every rank has ended its batch, and `checkpoint` was saved. It is no
/// std::exception, so that programs that report errors let it pass. Nobody need catch it: it then ends the process with
/// exit code 143.
struct Terminated {
  static constexpr int kExitCode = 143;   ///< 128 + SIGTERM
  std::filesystem::path checkpoint = {};  ///< empty: the signal came when fit() had already ended
};

}  // namespace muster
