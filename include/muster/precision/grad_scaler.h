#pragma once

#include "muster/precision/options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace muster::precision {

/// The loss scale of one optimizer: the rule of PyTorch's GradScaler, by the operators it uses.
///
/// Knows no other rank: whoever owns it agrees on found_inf() before update().
/// Thread safety: one thread at a time.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const noexcept { return state_.scale; }

  /// Divides the gradients in place by the scale that they were made with, and notes whether one of them is infinite or not
  /// a number. Floating tensors of any dtypes on any devices.
  void unscale(const std::vector<at::Tensor>& gradients, double made_with);
  /// A gradient that was unscaled since the last update() is not finite. Waits for the device.
  bool found_inf() const;
  /// Ends a step: the scale shrinks if gradients were not finite, and grows after enough steps in a row in which they
  /// were. A step with gradients of a smaller scale than this one's says nothing about growing and is not counted.
  void update(bool found_inf, double made_with);

  GradScalerState state() const noexcept { return state_; }
  /// Throws: ConfigError (MU147) for a scale that is not positive and finite, or a negative count.
  void load_state(const GradScalerState& state);

 private:
  GradScalerOptions options_;
  GradScalerState state_;
  std::vector<at::Tensor> found_;   // one flag per device
};

}  // namespace muster::precision
