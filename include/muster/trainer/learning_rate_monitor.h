#pragma once

#include <string>
#include <string_view>

#include "muster/base/word.h"
#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

namespace trainer {
struct LoggingIntervalWords {
  static constexpr std::string_view kAll[] = {"schedule", "step", "epoch"};
};
}  // namespace trainer

using LoggingInterval = Word<trainer::LoggingIntervalWords>;

/// What a LearningRateMonitor logs, with Lightning's names and defaults.
struct LearningRateMonitorOptions {
  std::string log_key_prefix = {};  ///< in front of every name
  bool log_momentum = false;        ///< "lr-SGD-momentum", too: the momentum, or the first of betas
  bool log_weight_decay = false;    ///< "lr-SGD-weight_decay", too
  /// "step": as log_every_n_steps says; "epoch": at its start; "schedule": each schedule by its own interval.
  LoggingInterval logging_interval = "schedule";
};

/// Gives the logger the learning rates as "lr-SGD": of several optimizers of one type "lr-SGD", "lr-SGD-1"; of several
/// parameter groups "lr-SGD/pg1", "lr-SGD/pg2"; under its name if an LRSchedulerConfig has one. Watching callbacks find
/// them in callback_metrics(), too. Optimizers without scheduler are logged as well.
class LearningRateMonitor : public Callback {
 public:
  explicit LearningRateMonitor(LearningRateMonitorOptions options = {});
  /// Throws: UsageError (MU433) if the Trainer has no logger.
  void on_train_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_epoch_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_batch_start(Trainer& trainer, TrainerModule& module, const BatchView& batch, BatchPlace place) override;

 private:
  void log(Trainer& trainer, ScheduleInterval interval) const;

  LearningRateMonitorOptions options_;
};

}  // namespace muster
