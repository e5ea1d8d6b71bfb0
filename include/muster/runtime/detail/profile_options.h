#pragma once

#include <filesystem>

namespace muster {

/// What profile() records and where it writes.
struct ProfileOptions {
  bool operators = false;                     ///< record LibTorch's operators, too; they make the trace long
  std::filesystem::path path = "trace.json";  ///< written by the main rank
};

}  // namespace muster
