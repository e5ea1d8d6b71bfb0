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

/// The purpose of a run. fit also validates.
enum class Stage : std::uint8_t { fit, validate, test, predict };

/// A number of batches (1), or a fraction of all batches (1.0). 0 leaves the stage out.
class BatchLimit {
 public:
  template <std::integral T>
  constexpr BatchLimit(T batches) : value_(static_cast<int64_t>(batches)) {}  // NOLINT(google-explicit-constructor)
  constexpr BatchLimit(double part) : value_(part) {}                         // NOLINT(google-explicit-constructor)
  /// The number of batches; nullptr if a fraction was given.
  constexpr const int64_t* count() const noexcept { return std::get_if<int64_t>(&value_); }
  /// The fraction; nullptr if a number was given.
  constexpr const double* part() const noexcept { return std::get_if<double>(&value_); }
  constexpr bool none() const noexcept { return count() ? *count() == 0 : *part() == 0; }
  friend constexpr bool operator==(const BatchLimit&, const BatchLimit&) = default;

 private:
  std::variant<int64_t, double> value_;
};

/// When validation runs: after a number of batches, after a fraction of an epoch, or when a time has passed since the
/// last validation (a std::chrono duration, or "DD:HH:MM:SS").
class CheckInterval : public BatchLimit {
 public:
  using BatchLimit::BatchLimit;
  constexpr CheckInterval(TimeSpan time) : BatchLimit(1.0), time_(time) {}  // NOLINT(google-explicit-constructor)
  template <class Count, class Period>
  constexpr CheckInterval(std::chrono::duration<Count, Period> time)  // NOLINT(google-explicit-constructor)
      : CheckInterval(TimeSpan(time)) {}
  consteval CheckInterval(const char* text) : CheckInterval(TimeSpan(text)) {}  // NOLINT(google-explicit-constructor)
  /// The time; none if batches or a fraction were given.
  constexpr const TimeSpan& time() const noexcept { return time_; }

 private:
  TimeSpan time_ = {};
};

/// Options of muster::Trainer, with Lightning's names and defaults.
struct TrainerOptions {
  std::string accelerator = "auto";
  int accumulate_grad_batches = 1;  ///< batches per optimizer step; an epoch's end also steps
  bool affinity = true;             ///< bind threads to the cores near the GPU; see AcceleratorOptions
  std::string backend = "auto";     ///< the first of "shm", "hierarchical" and "gloo" that works
  /// Only train: no checkpoints, no sanity check, and log() does nothing. Callbacks still run.
  bool barebones = false;
  std::optional<bool> benchmark = {};  ///< let cuDNN try its kernels; see AcceleratorOptions
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  /// Validate in epochs whose number, from 1, is a multiple of this; unset: val_check_interval counts across epochs.
  std::optional<int64_t> check_val_every_n_epoch = 1;
  std::filesystem::path default_root_dir = ".";
  bool detect_anomaly = false;  ///< backward names the operator that made a gradient NaN; slow
  Deterministic deterministic = false;
  DeviceBackend device_backend = {};  ///< backend for tensors of the accelerator; see AcceleratorOptions
  Devices devices = {};
  bool enable_checkpointing = true;  ///< a ModelCheckpoint is added if `callbacks` has none
  bool enable_model_summary = true;  ///< a ModelSummary is added if `callbacks` has none
  bool enable_progress_bar = true;   ///< a TrainerProgressBar is added if `callbacks` has none
  int64_t fast_dev_run = 0;          ///< batches of each kind in a test run of one epoch that writes nothing; 0: off
  GradScalerOptions grad_scaler = {};
  ClipAlgorithm gradient_clip_algorithm = "norm";
  std::optional<double> gradient_clip_val = {};
  /// fixed: every loss is divided by accumulate_grad_batches, as in Lightning, even in a shorter last window.
  GradientWeighting gradient_weighting = GradientWeighting::mean;
  /// validate(), test() and predict() of one rank run in inference mode: faster, but autograd refuses their tensors.
  bool inference_mode = true;
  KeepMemory keep_memory = "auto";
  BatchLimit limit_predict_batches = 1.0;
  BatchLimit limit_test_batches = 1.0;
  BatchLimit limit_train_batches = 1.0;
  BatchLimit limit_val_batches = 1.0;
  int64_t log_every_n_steps = 50;  ///< batches between two rows of step values; 0: none
  /// The trackers that log() writes to: {.log_with = {"csv", "tensorboard"}}; empty: none. A relative root is relative
  /// to default_root_dir.
  TrackersOptions logger = {.log_with = {}};
  MatmulPrecision matmul_precision = "auto";  ///< how float32 matrices are multiplied
  /// Unset: 1000, unless max_steps or max_time is given; -1: no limit.
  std::optional<int64_t> max_epochs = {};
  int64_t max_steps = -1;  ///< updates of all optimizers; -1: no limit
  /// The longest training time, including time before resuming: a duration, or "DD:HH:MM:SS".
  TimeSpan max_time = {};
  std::optional<int64_t> min_epochs = {};
  std::optional<int64_t> min_steps = {};
  int num_nodes = 1;
  int64_t num_sanity_val_steps = 2;  ///< validation batches before training; -1: all
  /// Train and validate only on these first batches, in the order of the data; 0.0: off. Replaces both limits.
  BatchLimit overfit_batches = 0.0;
  Precision precision = "32-true";
  RecomputeOptions recompute = {};                ///< as in AcceleratorOptions
  int64_t reload_dataloaders_every_n_epochs = 0;  ///< 0: the loaders are made once
  /// Called on the main rank after SIGUSR1, with the saved checkpoint, to requeue the job. Unset: under SLURM `scontrol
  /// requeue` is called.
  std::function<void(const std::filesystem::path& checkpoint)> requeue = {};
  Strategy strategy = "auto";
  bool sync_batchnorm = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  bool two_level_sums = false;             ///< "hierarchical" adds up on each host first: other bits than gloo's
  CheckInterval val_check_interval = 1.0;  ///< batches, a fraction of an epoch, or a time since the last validation
};

/// How a value is logged. Unset fields take the default of the calling hook.
struct LogOptions {
  bool add_dataloader_idx = true;          ///< with several loaders, append "/dataloader_idx_N"
  std::optional<int64_t> batch_size = {};  ///< the weight in a mean; unset: the size of the current batch
  bool logger = true;                      ///< send the value to the Trainer's logger
  std::optional<bool> on_epoch = {};
  std::optional<bool> on_step = {};
  bool prog_bar = false;  ///< show the value in the progress bar
  bool rank_zero_only = false;
  LogReduction reduce_fx = "mean";
  std::optional<bool> sync_dist = {};  ///< unset: epoch values are reduced over ranks, step values are not
  friend bool operator==(const LogOptions&, const LogOptions&) = default;
};

/// How fit() begins.
struct FitOptions {
  /// The checkpoint to resume from: its folder; "last" or "hpc" (none if it does not exist yet); "best"; "none". Empty:
  /// none, except in ranks that `muster run` has restarted, which take the newest checkpoint of this job.
  std::string ckpt_path = {};
};

/// How Trainer::save_checkpoint() saves.
struct SaveCheckpointOptions {
  bool asynchronous = false;  ///< training continues while the files are written
  bool weights_only = false;  ///< model.safetensors alone
};

/// How validate(), test() and predict() begin.
struct EvaluateOptions {
  std::string ckpt_path = {};      ///< source of the weights: a folder, "last", "hpc" or "best"; empty: none
  bool return_predictions = true;  ///< off: predict() returns none; a PredictionWriter gets them
};

/// How gradients are clipped.
struct GradientClipOptions {
  ClipAlgorithm algorithm = "norm";
  double value = 1.0;
};

}  // namespace muster
