#pragma once

#include "muster/data/options.h"
#include "muster/device/options.h"
#include "muster/format/options.h"
#include "muster/precision/options.h"
#include "muster/strategy/options.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

class Callback;

/// How many processes, or which devices: 2, {0, 2}, "auto", "0,2", "-1".
class Devices {
 public:
  Devices() = default;
  Devices(int count) : text_(std::to_string(count)) {}
  Devices(std::initializer_list<int> indices);
  Devices(const char* text) : text_(text) {}
  Devices(std::string text) : text_(std::move(text)) {}
  const std::string& text() const noexcept { return text_; }
  friend bool operator==(const Devices&, const Devices&) = default;

 private:
  std::string text_ = "auto";
};

/// What the gradients of a window of micro-batches on all ranks are put together to.
enum class GradientWeighting {
  fixed,   ///< each micro-batch counts 1/num_steps, and ranks count alike: Accelerate's rule, which gives short windows too little
  mean,    ///< the mean over all samples of the window: every loss is a mean over its micro-batch's samples
  sum,     ///< the sum: every loss is a sum over samples
};

/// How gradients are accumulated over several micro-batches.
struct GradientAccumulationOptions {
  /// Schedules are written in micro-batches: a scheduler steps as many times per update as the window held.
  bool adjust_scheduler = false;
  /// Micro-batches in a window.
  int num_steps = 1;
  /// Communicate gradients with every micro-batch: saves memory where parameters are sharded.
  bool sync_each_batch = false;
  /// The last batch of a loader ends the window.
  bool sync_with_dataloader = true;
  GradientWeighting weighting = GradientWeighting::mean;
};

/// Where a program keeps its checkpoints.
struct ProjectOptions {
  /// save_state() and load_state() without a folder use numbered ones in directory/checkpoints.
  bool automatic_checkpoint_naming = false;
  std::string directory = ".";
  /// Numbered checkpoints to keep; older ones are removed once a new one is complete, nothing else ever. 0 keeps all.
  int total_limit = 0;
};

/// How the state of a job is saved.
struct SaveStateOptions {
  /// Training goes on while the files are written.
  bool asynchronous = false;
  Durability durability = Durability::full;
};

/// How the state of a job is loaded.
struct LoadStateOptions {
  /// Weights that only one side has, and things that the checkpoint has beyond the program's, are errors.
  bool strict = true;
};

/// Options of muster::Accelerator, with Accelerate's words and defaults.
struct AcceleratorOptions {
  /// Stay on the CPU even where there is an accelerator.
  bool cpu = false;
  /// Only deterministic kernels; an operator that has none throws.
  bool deterministic = false;
  /// Data are read by rank 0 alone, which sends each rank its batches, or by every rank. Unset: as each loader's options say.
  std::optional<bool> dispatch_batches = {};
  /// Every rank gets the same number of equal batches: the first samples are repeated to fill the last ones.
  bool even_batches = true;
  /// Submodules whose parameters stay in float32 where the precision casts the others; see in_fp32().
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  /// Short for gradient_accumulation.num_steps; give one of the two.
  int gradient_accumulation_steps = 1;
  KeepMemory keep_memory = "auto";
  Precision mixed_precision = "no";
  ProjectOptions project = {};
  /// A loader's batch_size is the whole job's, cut into one piece per rank, instead of each rank's.
  bool split_batches = false;
  /// Off: a scheduler's step() always steps, whatever the optimizer does.
  bool step_scheduler_with_optimizer = true;
  Strategy strategy = "auto";
  /// Which generators of LibTorch get rank 0's state whenever a pass over a prepared loader begins: Accelerate's rng_types.
  SyncedGenerators synced_generators = {};
  /// The longest that a rank waits for the others, in a collective and when ranks meet, in seconds. `muster run --timeout` and
  /// MUSTER_TIMEOUT fill the default, and must not contradict another value (MU171).
  int64_t timeout_seconds = 600;
};

/// Options of muster::Fabric, with Fabric's words and defaults.
struct FabricOptions {
  /// "auto", "cpu", "cuda" or "gpu".
  std::string accelerator = "auto";
  /// Told of the program's course, and reached by call().
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  Devices devices = {};
  /// Submodules whose parameters stay in float32 where the precision casts the others; see in_fp32().
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  KeepMemory keep_memory = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  Strategy strategy = "auto";
  int64_t timeout_seconds = 600;
};

/// How backward runs.
struct BackwardOptions {
  /// Keep the graph for another backward.
  bool retain_graph = false;
};

/// How gradients are clipped by norm.
struct ClipOptions {
  /// A norm that is infinite or not a number throws (MU175) instead of spoiling the parameters.
  bool error_if_nonfinite = false;
  double norm_type = 2.0;
  /// With such a norm the next step of the optimizers that hold these parameters updates nothing, on all ranks alike.
  bool skip_if_nonfinite = false;
};

/// How Fabric clips: exactly one of the two bounds.
struct ClipGradientsOptions {
  std::optional<double> clip_val = {};
  bool error_if_nonfinite = true;
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
};

/// How ranks with unequally many batches train together.
struct UnevenInputsOptions {
  /// Sums of gradients are divided by the number of all ranks all along; off: by that of the ranks that still have a batch. Leave it
  /// on with accumulate(), which weighs by samples.
  bool divide_by_initial_world_size = true;
  /// Whether prepared loaders repeat samples meanwhile to make ranks equal. Unset: as they were prepared.
  std::optional<bool> even_batches = {};
};

/// Options of the runtime behind both doors; a door's preset fills them.
struct RuntimeOptions {
  std::string accelerator = "auto";
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  bool deterministic = false;
  /// Empty: as many as the launcher says. Otherwise launch() brings them up.
  std::optional<Devices> devices = {};
  std::optional<bool> dispatch_batches = {};
  bool even_batches = true;
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  KeepMemory keep_memory = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  ProjectOptions project = {};
  bool split_batches = false;
  bool step_scheduler_with_optimizer = true;
  Strategy strategy = "auto";
  SyncedGenerators synced_generators = {};
  int64_t timeout_seconds = 600;
};

}  // namespace muster
