#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "muster/base/time_span.h"
#include "muster/base/word.h"
#include "muster/runtime/options.h"
#include "muster/track/options.h"

namespace muster {

class Callback;

namespace trainer {
struct ClipWords {
  static constexpr std::string_view kAll[] = {"norm", "value"};
};
struct IntervalWords {
  static constexpr std::string_view kAll[] = {"epoch", "step"};
};
struct ModeWords {
  static constexpr std::string_view kAll[] = {"min", "max"};
};
struct ReduceWords {
  static constexpr std::string_view kAll[] = {"mean", "sum", "min", "max"};
};
}  // namespace trainer

using ClipAlgorithm = Word<trainer::ClipWords>;
using ScheduleInterval = Word<trainer::IntervalWords>;
using MonitorMode = Word<trainer::ModeWords>;
using LogReduction = Word<trainer::ReduceWords>;

/// Names and values of what was logged.
using Metrics = std::map<std::string, double>;

/// What a run is for. fit validates too.
enum class Stage : std::uint8_t { fit, validate, test, predict };

/// So many batches, or such a part of all batches: 1 and 1.0 differ. 0 leaves the stage out.
class BatchLimit {
 public:
  template <std::integral T>
  constexpr BatchLimit(T batches) : value_(static_cast<int64_t>(batches)) {}  // NOLINT(google-explicit-constructor)
  constexpr BatchLimit(double part) : value_(part) {}                         // NOLINT(google-explicit-constructor)
  /// The number of batches; nullptr if a part was given.
  constexpr const int64_t* count() const noexcept { return std::get_if<int64_t>(&value_); }
  /// The part; nullptr if a number was given.
  constexpr const double* part() const noexcept { return std::get_if<double>(&value_); }
  constexpr bool none() const noexcept { return count() ? *count() == 0 : *part() == 0; }
  friend constexpr bool operator==(const BatchLimit&, const BatchLimit&) = default;

 private:
  std::variant<int64_t, double> value_;
};

/// When validation runs: after so many batches, after such a part of an epoch, or once so much time has passed since
/// the last validation: a std::chrono duration, or "DD:HH:MM:SS".
class CheckInterval : public BatchLimit {
 public:
  using BatchLimit::BatchLimit;
  constexpr CheckInterval(TimeSpan time) : BatchLimit(1.0), time_(time) {}  // NOLINT(google-explicit-constructor)
  template <class Count, class Period>
  constexpr CheckInterval(std::chrono::duration<Count, Period> time)  // NOLINT(google-explicit-constructor)
      : CheckInterval(TimeSpan(time)) {}
  consteval CheckInterval(const char* text) : CheckInterval(TimeSpan(text)) {}  // NOLINT(google-explicit-constructor)
  /// None if batches or a part were given.
  constexpr const TimeSpan& time() const noexcept { return time_; }

 private:
  TimeSpan time_ = {};
};

/// Options of muster::Trainer, with Lightning's names and defaults.
struct TrainerOptions {
  std::string accelerator = "auto";
  int accumulate_grad_batches = 1;  ///< the optimizer steps once for so many batches, and at the end of an epoch
  bool affinity = true;             ///< as in AcceleratorOptions
  std::string backend = "auto";     ///< "shm", shared memory of one host, where all ranks can; else "gloo"
  /// Nothing but training: no checkpoints, no sanity check, and log() does nothing. Callbacks still run.
  bool barebones = false;
  std::optional<bool> benchmark = {};  ///< as in AcceleratorOptions
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  /// Validate in epochs whose number, from 1, divides by this; unset: val_check_interval counts through all epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  std::filesystem::path default_root_dir = ".";
  bool detect_anomaly = false;  ///< backward names the operator that made a gradient NaN; slow
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};  ///< as in AcceleratorOptions
  Devices devices = {};
  bool enable_checkpointing = true;  ///< a ModelCheckpoint is added if `callbacks` has none
  bool enable_model_summary = true;  ///< a ModelSummary is added if `callbacks` has none
  bool enable_progress_bar = true;   ///< a TrainerProgressBar is added if `callbacks` has none
  int64_t fast_dev_run = 0;          ///< so many batches of every kind, one epoch, nothing written; 0: off
  GradScalerOptions grad_scaler = {};
  ClipAlgorithm gradient_clip_algorithm = "norm";
  std::optional<double> gradient_clip_val = {};
  /// fixed: every loss is divided by accumulate_grad_batches, as in Lightning, also in a shorter last window.
  GradientWeighting gradient_weighting = GradientWeighting::mean;
  /// validate(), test() and predict() of one rank run in inference mode: faster, but autograd refuses what they make.
  bool inference_mode = true;
  KeepMemory keep_memory = "auto";
  BatchLimit limit_predict_batches = 1.0;
  BatchLimit limit_test_batches = 1.0;
  BatchLimit limit_train_batches = 1.0;
  BatchLimit limit_val_batches = 1.0;
  int64_t log_every_n_steps = 50;  ///< batches between two rows of values of a step; 0: none
  /// What log() writes to: {.log_with = {"csv", "tensorboard"}}; empty: nothing. A relative root is taken from
  /// default_root_dir.
  TrackersOptions logger = {.log_with = {}};
  MatmulPrecision matmul_precision = "auto";  ///< as in AcceleratorOptions
  /// Unset: 1000, unless max_steps or max_time is given; -1: no limit.
  std::optional<int64_t> max_epochs = {};
  int64_t max_steps = -1;  ///< updates of all optimizers; -1: no limit
  /// Training ends after so much time, that before resuming included: a duration, or "DD:HH:MM:SS".
  TimeSpan max_time = {};
  std::optional<int64_t> min_epochs = {};
  std::optional<int64_t> min_steps = {};
  int num_nodes = 1;
  int64_t num_sanity_val_steps = 2;  ///< validation batches before training; -1: all
  /// Train and validate on these batches only, in the order of the data; 0.0: off. Replaces both limits.
  BatchLimit overfit_batches = 0.0;
  Precision precision = "32-true";
  int64_t reload_dataloaders_every_n_epochs = 0;  ///< 0: the loaders are made once
  /// Called on the main rank after SIGUSR1, with the checkpoint that was saved, to queue the job again. Unset: under
  /// SLURM `scontrol requeue` is called.
  std::function<void(const std::filesystem::path& checkpoint)> requeue = {};
  Strategy strategy = "auto";
  bool sync_batchnorm = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;             ///< as in AcceleratorOptions
  CheckInterval val_check_interval = 1.0;  ///< batches, a part of an epoch, or a time since the last validation
};

/// How a value is logged. Fields that are unset: as the calling hook has it by default.
struct LogOptions {
  bool add_dataloader_idx = true;          ///< with several loaders the name gets "/dataloader_idx_N"
  std::optional<int64_t> batch_size = {};  ///< the weight in a mean; unset: the size of the current batch
  bool logger = true;                      ///< the Trainer's logger gets it
  std::optional<bool> on_epoch = {};
  std::optional<bool> on_step = {};
  bool prog_bar = false;  ///< the progress bar shows it
  bool rank_zero_only = false;
  LogReduction reduce_fx = "mean";
  std::optional<bool> sync_dist = {};  ///< unset: values of an epoch are reduced over ranks, those of a step are not
};

/// How fit() begins.
struct FitOptions {
  /// The checkpoint to resume from: its folder; "last" or "hpc", or none if none is there yet; "best"; "none"; empty:
  /// none, but in ranks that `muster run` has started again, the newest that this job has saved.
  std::string ckpt_path = {};
};

/// How Trainer::save_checkpoint() saves.
struct SaveCheckpointOptions {
  bool asynchronous = false;  ///< training goes on while the files are written
  bool weights_only = false;  ///< model.safetensors alone
};

/// How validate(), test() and predict() begin.
struct EvaluateOptions {
  std::string ckpt_path = {};      ///< whose weights are loaded first: a folder, "last", "hpc" or "best"; empty: none
  bool return_predictions = true;  ///< of predict(); off: a PredictionWriter has them
};

/// How gradients are clipped.
struct GradientClipOptions {
  ClipAlgorithm algorithm = "norm";
  double value = 1.0;
};

}  // namespace muster
