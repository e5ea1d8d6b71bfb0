#pragma once

#include <chrono>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/word.h"
#include "muster/cluster/options.h"
#include "muster/data/options.h"
#include "muster/device/options.h"
#include "muster/format/options.h"
#include "muster/precision/options.h"
#include "muster/strategy/options.h"

namespace muster {

class FabricCallback;

/// The number of processes, or the devices: 2, {0, 2}, "auto", "0,2", "-1".
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

namespace runtime {
struct MatmulPrecisionWords {
  static constexpr std::string_view kAll[] = {"auto", "highest", "high", "medium"};
};
struct WarnWords {
  static constexpr std::string_view kAll[] = {"warn"};
};
}  // namespace runtime

/// How float32 matrices are multiplied, as torch.set_float32_matmul_precision has it: "highest", in float32; "high", in
/// TF32 where the device has it; "medium", in bfloat16 or TF32 where it has them. "auto": as LibTorch has it, which the
/// program may have set itself.
using MatmulPrecision = Word<runtime::MatmulPrecisionWords>;

/// Whether only deterministic kernels are used: true, false, or "warn".
class Deterministic {
 public:
  constexpr Deterministic(bool on) : Deterministic(on, false) {}  // NOLINT(google-explicit-constructor)
  consteval Deterministic(const char* text)                       // NOLINT(google-explicit-constructor)
      : Deterministic(true, Word<runtime::WarnWords>(text).text() == "warn") {}
  static constexpr Deterministic warn() { return {true, true}; }
  constexpr explicit operator bool() const noexcept { return on_; }
  constexpr bool warns() const noexcept { return warns_; }
  friend constexpr bool operator==(Deterministic, Deterministic) = default;

 private:
  constexpr Deterministic(bool on, bool warns) : on_(on), warns_(warns) {}
  bool on_, warns_;
};

/// How the gradients of a window of micro-batches on all ranks are combined.
enum class GradientWeighting {
  fixed,  ///< 1/num_steps per micro-batch, all ranks alike: Accelerate's rule, which gives short windows too little
  mean,   ///< the mean over all samples of the window, if every loss is a mean over its micro-batch's samples
  sum,    ///< the sum, if every loss is a sum over samples
};

/// How gradients are accumulated over several micro-batches.
struct GradientAccumulationOptions {
  /// Schedules count micro-batches: at each update a scheduler takes as many steps as the window had micro-batches.
  bool adjust_scheduler = false;
  /// Number of micro-batches in a window.
  int num_steps = 1;
  /// Communicate gradients in every micro-batch: saves memory if parameters are sharded.
  bool sync_each_batch = false;
  /// The last batch of a loader ends the window.
  bool sync_with_dataloader = true;
  GradientWeighting weighting = GradientWeighting::mean;
};

/// Where a program keeps its checkpoints.
struct ProjectOptions {
  /// Without a folder, save_state() and load_state() use numbered folders in directory/checkpoints.
  bool automatic_checkpoint_naming = false;
  std::string directory = ".";
  /// Where checkpoints are kept; unset: in folders that all ranks see. save_model() and load_model() use files only.
  std::shared_ptr<class CheckpointStorage> storage = {};
  /// Number of numbered checkpoints to keep; 0: all. Older ones, and nothing else, go once a new one is complete.
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
  /// It is an error if the checkpoint lacks weights of the program, or holds weights or objects that the program lacks.
  bool strict = true;
};

/// Options of muster::Accelerator, with Accelerate's names and defaults.
struct AcceleratorOptions {
  /// The threads of a rank whose GPU is near some of the cores keep to these; ranks near the same cores share them out.
  bool affinity = true;
  std::string backend = "auto";  ///< the first of "shm", "hierarchical" (hosts that have shm) and "gloo" that works
  /// cuDNN tries its kernels for each new shape and takes the fastest. Unset: as LibTorch has it, but off if only
  /// deterministic kernels are used.
  std::optional<bool> benchmark = {};
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};  ///< called by the runtime and by call()
  /// Asked before Muster's own readers who this process is among the ranks; for a launcher that Muster does not know.
  ClusterReader cluster_reader = {};
  bool cpu = false;  ///< use the CPU even if there is an accelerator
  /// Use only deterministic kernels; an operation that has none throws, or under "warn" warns.
  Deterministic deterministic = false;
  /// Over what ranks exchange tensors of the accelerator: "auto", which takes NCCL for CUDA if its object is there,
  /// "none" (through host memory), "nccl" or another object's name, or std::make_shared<comm::BackendEntry>(...), see
  /// muster/comm/rendezvous.h.
  DeviceBackend device_backend = {};
  /// "auto": as many as the launcher started. Otherwise launch() starts them.
  Devices devices = {};
  /// True: rank 0 alone reads the data and sends each rank its batches. False: every rank reads. Unset: as each
  /// loader's options say.
  std::optional<bool> dispatch_batches = {};
  /// Every rank gets the same number of batches of the same size: the first samples are repeated to fill the last
  /// batches.
  bool even_batches = true;
  /// Submodules whose parameters stay in float32 where the precision casts the others; see in_fp32().
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  /// Short for gradient_accumulation.num_steps; set only one of the two.
  int gradient_accumulation_steps = 1;
  KeepMemory keep_memory = "auto";
  MatmulPrecision matmul_precision = "auto";
  Precision mixed_precision = "no";
  int num_nodes = 1;
  ProjectOptions project = {};
  /// A loader's batch_size is that of all ranks together, split into one part per rank, instead of each rank's.
  bool split_batches = false;
  bool step_scheduler_with_optimizer = true;  ///< off: step() of a scheduler always steps, whatever the optimizer does
  Strategy strategy = "auto";
  /// Which generators of LibTorch get rank 0's state whenever a pass over a prepared loader begins: Accelerate's
  /// rng_types.
  SyncedGenerators synced_generators = {};
  /// How long a rank waits at most for the others, in a collective and in the rendezvous. `muster run --timeout` and
  /// MUSTER_TIMEOUT, in seconds, replace the default; they must not contradict another value of the program (MU171).
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;  ///< "hierarchical" adds up on each host first: other bits than gloo's
};

/// How backward runs.
struct BackwardOptions {
  /// Keep the graph for another backward.
  bool retain_graph = false;
};

/// How gradients are clipped by norm.
struct ClipOptions {
  /// Throw (MU175) if the norm is infinite or NaN, instead of spoiling the parameters. Of gradients on a device the
  /// host learns it later: then the step changes nothing, and the next one throws, or what asks before it
  /// (step_was_skipped(), save_state()).
  bool error_if_nonfinite = false;
  double norm_type = 2.0;
  /// If the norm is infinite or NaN, the next step of the optimizers that hold these parameters updates nothing, on all
  /// ranks.
  bool skip_if_nonfinite = false;
};

/// Options of muster::Fabric, with Fabric's names and defaults; what Fabric does not have is as in AcceleratorOptions.
struct FabricOptions {
  /// "auto", "cpu", "cuda" or "gpu".
  std::string accelerator = "auto";
  bool affinity = true;                ///< as in AcceleratorOptions
  std::string backend = "auto";        ///< as in AcceleratorOptions
  std::optional<bool> benchmark = {};  ///< as in AcceleratorOptions
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};
  ClusterReader cluster_reader = {};
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};  ///< as in AcceleratorOptions
  Devices devices = {};
  std::optional<bool> dispatch_batches = {};
  /// Submodules whose parameters stay in float32 where the precision casts the others; see in_fp32().
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  KeepMemory keep_memory = "auto";
  MatmulPrecision matmul_precision = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  ProjectOptions project = {};
  Strategy strategy = "auto";
  SyncedGenerators synced_generators = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;  ///< as in AcceleratorOptions
};

/// How Fabric clips: set exactly one of clip_val and max_norm.
struct ClipGradientsOptions {
  std::optional<double> clip_val = {};
  bool error_if_nonfinite = true;
  std::optional<double> max_norm = {};
  double norm_type = 2.0;
};

/// Options of the runtime behind Accelerator and Fabric; runtime::accelerate() and runtime::fabric() derive them from
/// the options of either.
struct RuntimeOptions {
  std::string accelerator = "auto";
  bool affinity = true;
  std::string backend = "auto";
  std::optional<bool> benchmark = {};
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};
  ClusterReader cluster_reader = {};
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};
  /// Unset: as many as the launcher started. Otherwise launch() starts them.
  std::optional<Devices> devices = {};
  std::optional<bool> dispatch_batches = {};
  bool even_batches = true;
  std::vector<std::string> fp32_modules = {};
  GradScalerOptions grad_scaler = {};
  GradientAccumulationOptions gradient_accumulation = {};
  KeepMemory keep_memory = "auto";
  MatmulPrecision matmul_precision = "auto";
  int num_nodes = 1;
  Precision precision = "32-true";
  ProjectOptions project = {};
  bool split_batches = false;
  bool step_scheduler_with_optimizer = true;
  Strategy strategy = "auto";
  SyncedGenerators synced_generators = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;
};

namespace runtime {

/// RuntimeOptions with the defaults that Accelerate documents.
RuntimeOptions accelerate(const AcceleratorOptions& options);
/// RuntimeOptions with the defaults that Lightning Fabric documents.
RuntimeOptions fabric(const FabricOptions& options);

}  // namespace runtime

}  // namespace muster
