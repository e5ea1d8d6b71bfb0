#pragma once

#include <filesystem>
#include <optional>

namespace muster {

/// What profile() records and where it writes.
struct ProfileOptions {
  bool operators = false;                     ///< record LibTorch's operators, too, which makes the trace long
  std::filesystem::path path = "trace.json";  ///< written by the main rank
};

/// How ranks with different numbers of batches train together.
struct UnevenInputsOptions {
  /// Sums of gradients are always divided by the world size; off: by the number of ranks that still have a batch. Leave
  /// it on with accumulate(), which weights by samples.
  bool divide_by_initial_world_size = true;
  /// Whether prepared loaders repeat samples during the call, to give all ranks equally many batches. Unset: as they
  /// were prepared.
  std::optional<bool> even_batches = {};
};

}  // namespace muster
