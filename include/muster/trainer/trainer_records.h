#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "muster/track/trackers.h"
#include "muster/trainer/optimizers.h"
#include "muster/trainer/options.h"

namespace muster {

namespace trainer {
class Core;
}

/// Records of a Trainer for callbacks, in addition to the state of its loops: logged and shown values, and training
/// objects.
/// Thread safety: as Trainer.
class TrainerRecords {
 public:
  /// The last value of each name that the logger got so far, on the main rank.
  const Metrics& logged_metrics() const;
  /// The values logged with prog_bar that are known without waiting for a device; all of them if logs_this_step() is
  /// true.
  Metrics progress_bar_metrics() const;
  /// The trackers of TrainerOptions::logger: logger().log({{"image", png}}, log_step()). On ranks other than the main
  /// one, and without a logger, they do nothing.
  const Trackers& logger() const;
  /// The folder of the logger's run, equal on every rank; empty without a logger.
  const std::filesystem::path& log_dir() const;
  /// The step under which values of the current batch are logged: the number of batches that have ended an accumulation
  /// window so far.
  int64_t log_step() const;
  /// Whether values of the current batch are logged, according to log_every_n_steps.
  bool logs_this_step() const;
  /// Logs values that belong to no hook, under log_step(), and adds them to callback_metrics().
  void log_metrics(const Metrics& values);
  /// Sets the number of batches per optimizer step, from the next batch on. Requires: no accumulation window is open.
  void set_accumulate_grad_batches(int batches);
  /// The number of batches of each loader in a pass of this rank; nullopt: unknown. Only during a run of that stage.
  std::vector<std::optional<int64_t>> num_batches(Stage stage) const;
  /// The dataset indices of the samples in the current batch of an evaluation; for a stream, their positions. Empty if
  /// rank 0 reads for all ranks, and outside batches.
  std::vector<int64_t> batch_indices() const;
  /// Whether global_step() may be a multiple of this. Does not wait if global_step() is not known yet.
  bool may_be_step(int64_t multiple_of) const;
  /// Whether fit() validates.
  bool validates() const;
  /// Whether the current batch was the last one of an epoch and a validation follows it.
  bool validates_after_last_batch() const;
  /// Whether a checkpoint that is saved now would be from inside a batch; "last" skips those.
  bool saves_inside_batch() const;
  /// The result of configure_optimizers() in the current run, or in the last one.
  std::vector<Optimizers::Entry> configured_optimizers() const;

 protected:
  TrainerRecords();
  ~TrainerRecords();
  std::unique_ptr<trainer::Core> core_;
};

}  // namespace muster
