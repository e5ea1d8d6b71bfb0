#pragma once

#include <optional>

/// Options of single functions of Accelerator and Fabric.
namespace muster {

/// How backward runs.
struct BackwardOptions {
  /// Keep the graph for another backward.
  bool retain_graph = false;
};

/// How gradients are clipped by norm.
struct ClipOptions {
  /// Throw (MU175) if the norm is infinite or NaN, instead of spoiling the parameters.
  bool error_if_nonfinite = false;
  double norm_type = 2.0;
  /// If the norm is infinite or NaN, the next step of the optimizers that hold these parameters updates nothing, on all
  /// ranks.
  bool skip_if_nonfinite = false;
};

/// How Fabric clips: set exactly one of clip_val and max_norm.
struct ClipGradientsOptions {
  std::optional<double> clip_val = {};
  bool error_if_nonfinite = true;
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
};

/// How ranks with different numbers of batches train together.
struct UnevenInputsOptions {
  /// Sums of gradients are always divided by the world size; off: by the number of ranks that still have a batch. Leave
  /// it on with accumulate(), which weights by samples.
  bool divide_by_initial_world_size = true;
  /// Whether prepared loaders meanwhile repeat samples to give all ranks the same number of batches. Unset: as they
  /// were prepared.
  std::optional<bool> even_batches = {};
};

}  // namespace muster
