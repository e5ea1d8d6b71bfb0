#pragma once  // for other rooms

#include <ATen/core/Tensor.h>

#include "muster/precision/grad_scaler.h"

namespace muster::precision {

/// GradScaler for gradients that are all on one device: the scale, the count and the flag stay on the device, and no
/// function here waits for them. Scales are float64 tensors without dimensions; the bits are those of GradScaler.
/// Thread safety: one thread at a time.
/// Why: docs/decisions/0142-a-step-is-known-when-the-next-one-begins.md.
class DeviceGradScaler {
 public:
  DeviceGradScaler(const GradScalerOptions& options, const GradScalerState& state, at::Device device);

  at::Device device() const { return scale_.device(); }
  /// The current scale; a different tensor after each update().
  const at::Tensor& scale() const noexcept { return scale_; }
  void unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& made_with);
  /// One float32 number: 1 if a gradient that was unscaled since the last update() is not finite. The caller makes
  /// ranks agree on it before update(), after which it is a different tensor.
  const at::Tensor& found_inf() const noexcept { return found_; }
  /// Forgets what was found: the same gradients will be checked again.
  void clear_found();
  void update(const at::Tensor& made_with);
  /// Shrinks the scale as update() does for gradients that are not finite, if `overflow`, float32 of one element, is 1.
  void shrink_if(const at::Tensor& overflow, const at::Tensor& made_with);
  /// The numbers of GradScalerState as float64, in the order of its fields.
  at::Tensor state() const;
  /// The state whose numbers state() gave.
  static GradScalerState read(const double* numbers) {
    return {.growth_tracker = static_cast<int64_t>(numbers[0]), .scale = numbers[1]};
  }

 private:
  GradScalerOptions options_;
  at::Tensor scale_, tracker_, found_;
};

}  // namespace muster::precision
