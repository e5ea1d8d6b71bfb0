#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "muster/track/progress_options.h"
#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

class Progress;

/// How a TrainerProgressBar shows a run.
struct TrainerProgressBarOptions {
  int64_t refresh_rate = 1;    ///< batches between two updates; 0: nothing is shown
  ProgressOptions shown = {};  ///< stream and style; by default a redrawn line on a terminal, else a few lines
};

/// Shows each training epoch, validation, sanity check, test and prediction as a bar, with the values logged with
/// prog_bar and the version of the logger's run ("v_num"). Only the main rank shows it. It never waits for a device:
/// values that a device computes change when Trainer::logs_this_step() is true. The Trainer adds one unless its options
/// switch it off.
class TrainerProgressBar : public Callback {
 public:
  /// Throws: ConfigError (MU451) for a negative refresh_rate.
  explicit TrainerProgressBar(TrainerProgressBarOptions options = {});

  /// The metrics after the bar. Override it to show others.
  virtual Metrics get_metrics(const Trainer& trainer) const;
  void disable() { enabled_ = false; }
  void enable() { enabled_ = true; }

  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void teardown(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_train_batch_start(Trainer& trainer, TrainerModule& module, const BatchView& batch, BatchPlace place) override;
  void on_train_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                          BatchPlace place) override;
  void on_train_epoch_end(Trainer& trainer, TrainerModule& module) override;
  void on_validation_start(Trainer& trainer, TrainerModule& module) override;
  void on_validation_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output,
                               const BatchView& batch, BatchPlace place) override;
  void on_validation_end(Trainer& trainer, TrainerModule& module) override;
  void on_test_start(Trainer& trainer, TrainerModule& module) override;
  void on_test_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                         BatchPlace place) override;
  void on_test_end(Trainer& trainer, TrainerModule& module) override;
  void on_predict_start(Trainer& trainer, TrainerModule& module) override;
  void on_predict_batch_end(Trainer& trainer, TrainerModule& module, const StepOutput& output, const BatchView& batch,
                            BatchPlace place) override;
  void on_predict_end(Trainer& trainer, TrainerModule& module) override;

 private:
  struct Bar {
    std::shared_ptr<Progress> shown = {};
    int64_t waiting = 0;  // batches done since the last update
  };
  bool shows() const { return main_ && enabled_ && options_.refresh_rate > 0; }
  void begin(Bar& bar, const Trainer& trainer, const std::string& title, Stage stage) const;
  void advance(Bar& bar, const Trainer& trainer) const;
  void end(Bar& bar, const Trainer& trainer) const;
  void set_metrics(Bar& bar, const Trainer& trainer) const;

  TrainerProgressBarOptions options_;
  bool enabled_ = true;
  bool main_ = true;
  Bar training_, evaluation_;
};

}  // namespace muster
