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

/// What callbacks ask a Trainer, beside the state of its loops: what is logged and shown, and with what it trains.
/// Thread safety: as Trainer.
class TrainerRecords {
 public:
  /// What the logger got so far, on the main rank: the last value of each name.
  const Metrics& logged_metrics() const;
  /// What log() was given with prog_bar, as far as it is known without waiting for a device; all of it where
  /// logs_this_step() is true.
  Metrics progress_bar_metrics() const;
  /// The trackers of TrainerOptions::logger: logger().log({{"image", png}}, log_step()). On other ranks than the main
  /// one, and without a logger, they do nothing.
  const Trackers& logger() const;
  /// The folder of the logger's run, the same on every rank; empty without a logger.
  const std::filesystem::path& log_dir() const;
  /// The step under which the logger gets values of the current batch: how many batches have ended an accumulation
  /// window so far.
  int64_t log_step() const;
  /// Whether the logger gets the values of the current batch, as log_every_n_steps says.
  bool logs_this_step() const;
  /// Gives the logger values of no hook, under log_step(), and adds them to callback_metrics().
  void log_metrics(const Metrics& values);
  /// From the next batch on, the optimizer steps once for so many. Requires: no accumulation window is open.
  void set_accumulate_grad_batches(int batches);
  /// Batches of each loader that a pass of this rank takes; nullopt: unknown. During a run of that stage only.
  std::vector<std::optional<int64_t>> num_batches(Stage stage) const;
  /// The dataset's indices of the samples in the current batch of an evaluation; of a stream, their positions. Empty
  /// where rank 0 reads for all ranks, and outside of batches.
  std::vector<int64_t> batch_indices() const;
  /// Whether global_step() may be a multiple of this: without a wait, where it is not known yet.
  bool may_be_step(int64_t multiple_of) const;
  /// Whether fit() validates.
  bool validates() const;
  /// Whether the last batch of an epoch was the last one, and a validation follows it.
  bool validates_after_last_batch() const;
  /// Whether a checkpoint that is saved now is one from inside of a batch, which "last" passes over.
  bool saves_inside_batch() const;
  /// What configure_optimizers() returned for the current run, or the last one.
  std::vector<Optimizers::Entry> configured_optimizers() const;

 protected:
  TrainerRecords();
  ~TrainerRecords();
  std::unique_ptr<trainer::Core> core_;
};

}  // namespace muster
