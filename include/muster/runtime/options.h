#pragma once

#include <chrono>
#include <filesystem>
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
#include "muster/graph/options.h"
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

/// How float32 matrices are multiplied, with the names of torch.set_float32_matmul_precision: "highest", in float32;
/// "high", in TF32 if the device has it; "medium", in bfloat16 or TF32 if the device has them. "auto": LibTorch's
/// current setting, which the program may have changed.
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
  fixed,  ///< 1/num_steps per micro-batch on all ranks: Accelerate's rule, which gives short windows too little weight
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

/// Where and how many checkpoints a program keeps.
struct ProjectOptions {
  /// Without a folder, save_state() and load_state() use numbered folders in directory/checkpoints.
  bool automatic_checkpoint_naming = false;
  std::string directory = ".";
  /// Where checkpoints are kept; unset: in folders that all ranks see. save_model() and load_model() use files only.
  std::shared_ptr<class CheckpointStorage> storage = {};
  /// Number of numbered checkpoints to keep; 0: all. Older ones, and no other files, are removed once a new one is
  /// complete.
  int total_limit = 0;
};

/// How the state of a job is saved.
struct SaveStateOptions {
  /// Training continues while the files are written.
  bool asynchronous = false;
  Durability durability = Durability::full;
};

/// How the state of a job is loaded.
struct LoadStateOptions {
  /// Makes it an error if the checkpoint lacks weights of the program, or has weights or objects that the program
  /// lacks.
  bool strict = true;
};

/// Options of muster::Accelerator, with Accelerate's names and defaults.
struct AcceleratorOptions {
  /// Binds the threads of a rank to the cores near its GPU; ranks near the same cores divide them.
  bool affinity = true;
  std::string backend = "auto";  ///< the first of "shm", "hierarchical" (hosts that have shm) and "gloo" that works
  /// Whether cuDNN tries its kernels for each new shape and uses the fastest one. Unset: LibTorch's setting, but off
  /// with `deterministic`.
  std::optional<bool> benchmark = {};
  std::vector<std::shared_ptr<FabricCallback>> callbacks = {};  ///< called by the runtime and by call()
  /// Reads the variables of a launcher that Muster does not know; called before Muster's own readers.
  ClusterReader cluster_reader = {};
  bool cpu = false;  ///< use the CPU even if there is an accelerator
  /// Use only deterministic kernels; an operation without one throws, or with "warn" logs a warning.
  Deterministic deterministic = false;
  /// The backend for tensors of the accelerator: "auto" (NCCL for CUDA, if its library is installed), "none" (through
  /// host memory), "nccl" or the name of another library, or std::make_shared<comm::BackendEntry>(...); see
  /// muster/comm/rendezvous.h.
  DeviceBackend device_backend = {};
  /// "auto": as many ranks as the launcher started. Otherwise launch() starts the ranks.
  Devices devices = {};
  /// True: only rank 0 reads the data, and sends each rank its batches. False: every rank reads. Unset: as set in each
  /// loader's options.
  std::optional<bool> dispatch_batches = {};
  /// Every rank gets equally many batches of equal size: the first samples are repeated to fill the last batches.
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
  /// Activations that backward makes again instead of keeping them: {.blocks = {"TransformerEncoderLayer"}}.
  RecomputeOptions recompute = {};
  /// A loader's batch_size counts all ranks together: each batch is split into one part per rank.
  bool split_batches = false;
  bool step_scheduler_with_optimizer = true;  ///< off: step() of a scheduler always steps, whatever the optimizer does
  Strategy strategy = "auto";
  /// The generators of LibTorch that get rank 0's state whenever a pass over a prepared loader begins: Accelerate's
  /// rng_types.
  SyncedGenerators synced_generators = {};
  /// The longest wait for other ranks, in a collective and in the rendezvous. `muster run --timeout` and
  /// MUSTER_TIMEOUT, in seconds, replace the default; they must not contradict another value that the program sets
  /// (MU171).
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
  /// Throw (MU175) if the norm is infinite or NaN, instead of spoiling the parameters. Does nothing where losses are
  /// scaled: the step is skipped there. For gradients on a device, the
  /// host learns it later: the step changes nothing, and the next step throws, or an earlier call that waits for the
  /// device (step_was_skipped(), zero_grad(), save_state()).
  bool error_if_nonfinite = false;
  double norm_type = 2.0;
  /// If the norm is infinite or NaN, the next step of the optimizers that hold these parameters updates nothing, on all
  /// ranks.
  bool skip_if_nonfinite = false;
};

/// Options of muster::Fabric, with Fabric's names and defaults. AcceleratorOptions describes the options that it also
/// has.
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
  RecomputeOptions recompute = {};  ///< as in AcceleratorOptions
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
  /// Unset: as many ranks as the launcher started. Otherwise launch() starts the ranks.
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
  RecomputeOptions recompute = {};
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
