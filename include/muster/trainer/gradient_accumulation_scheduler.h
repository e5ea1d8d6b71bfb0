#pragma once

#include <cstdint>
#include <map>

#include "muster/trainer/callback.h"
#include "muster/trainer/options.h"

namespace muster {

/// Changes accumulate_grad_batches at the start of epochs: with {{4, 2}, {8, 4}} epochs 0 to 3 do not accumulate,
/// epochs 4 to 7 accumulate 2 batches, and later epochs 4. Afterwards the Trainer's setting is restored.
class GradientAccumulationScheduler : public Callback {
 public:
  /// `scheduling`: maps an epoch, counted from 0, to the number of batches in a window from that epoch on.
  /// Throws: ConfigError (MU451) for an empty map, an epoch below 0 or fewer than 1 batch.
  explicit GradientAccumulationScheduler(std::map<int64_t, int> scheduling);

  /// The number of batches in a window of this epoch.
  int accumulate_grad_batches(int64_t epoch) const;

  /// Throws: UsageError (MU435) if accumulate_grad_batches of the Trainer is not 1, or in manual optimization.
  void setup(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void teardown(Trainer& trainer, TrainerModule& module, Stage stage) override;
  void on_fit_start(Trainer& trainer, TrainerModule& module) override;
  void on_train_epoch_start(Trainer& trainer, TrainerModule& module) override;

 private:
  std::map<int64_t, int> scheduling_;
  bool active_ = false;  // between setup() and teardown() of a fit()
};

}  // namespace muster
