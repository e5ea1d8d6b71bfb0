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
  std::string log_key_prefix = {};  ///< prefix of every name
  bool log_momentum = false;        ///< also log "lr-SGD-momentum": the momentum, or the first beta
  bool log_weight_decay = false;    ///< also log "lr-SGD-weight_decay"
  /// "step": every log_every_n_steps; "epoch": at the start of each epoch; "schedule": at the interval of each
  /// schedule.
  LoggingInterval logging_interval = "schedule";
};

/// Logs the learning rates as "lr-SGD"; several optimizers of one type as "lr-SGD", "lr-SGD-1"; several parameter
/// groups as "lr-SGD/pg1", "lr-SGD/pg2"; or under the name in the LRSchedulerConfig. The rates are also in
/// callback_metrics(). Optimizers without a scheduler are logged as well.
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
