#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/precision/options.h"

namespace muster {

/// The state of a loss scale, for saving and loading.
struct GradScalerState {
  int64_t growth_tracker = 0;  ///< steps in a row with finite gradients
  double scale = 1.0;
  friend bool operator==(const GradScalerState&, const GradScalerState&) = default;
};

namespace precision {

/// The loss scale of one optimizer, by the rule and with the operators of PyTorch's GradScaler.
///
/// It does not communicate: its owner makes ranks agree on found_inf() before update().
/// Thread safety: one thread at a time.
class GradScaler {
 public:
  explicit GradScaler(const GradScalerOptions& options = {});

  double scale() const noexcept { return state_.scale; }

  /// Divides the gradients in place by `made_with`, the scale of their loss, and records whether any of them is
  /// infinite or NaN. Takes floating-point tensors of any dtypes on any devices.
  void unscale(const std::vector<at::Tensor>& gradients, double made_with);
  /// True if a gradient that was unscaled since the last update() is not finite. Waits for the device.
  bool found_inf() const;
  /// Forgets what was found: the same gradients will be checked again.
  void clear_found() { found_.clear(); }
  /// Ends a step: the scale shrinks if gradients were not finite, and grows after enough steps in a row with finite
  /// gradients. If `made_with` is smaller than the scale, finite gradients are not counted, and gradients that are not
  /// finite shrink the scale from `made_with`.
  /// Throws: UsageError (MU318) if the scale would become so small that float32 cannot represent its inverse.
  void update(bool found_inf, double made_with);

  GradScalerState state_dict() const noexcept { return state_; }
  /// Throws: ConfigError (MU147) for a scale that float32 cannot represent together with its inverse, or a negative
  /// count.
  void load_state_dict(const GradScalerState& state);
  /// Adopts a state that update() computed elsewhere. Throws: UsageError (MU318) as update().
  void follow(const GradScalerState& next);

 private:
  GradScalerOptions options_;
  GradScalerState state_;
  std::vector<at::Tensor> found_;  // one flag per device
};

}  // namespace precision

}  // namespace muster
