#pragma once

#include <cstdint>
#include <map>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Changes accumulate_grad_batches at the start of epochs: of {{4, 2}, {8, 4}} epochs 4 to 7 accumulate 2 batches and
/// later ones 4, and those before the first one named do not accumulate. Afterwards the Trainer is as before.
class GradientAccumulationScheduler : public Callback {
 public:
  /// `scheduling`: batches of a window from an epoch on, counted from 0.
  /// Throws: ConfigError (MU451) for an empty map, an epoch below 0 or fewer batches than 1.
  explicit GradientAccumulationScheduler(std::map<int64_t, int> scheduling);

  /// Batches of a window in this epoch.
  int accumulate_grad_batches(int64_t epoch) const;

  /// Throws: UsageError (MU435) if the Trainer's own accumulate_grad_batches is not 1, or in manual optimization.
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void teardown(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_epoch_start(Trainer& trainer, TrainerModule& module) override;

 private:
  std::map<int64_t, int> scheduling_;
  bool active_ = false;  // between setup() and teardown() of a fit()
};

}  // namespace muster
