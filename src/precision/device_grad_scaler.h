#pragma once  // for other rooms

#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/precision/grad_scaler.h"

namespace muster::precision {

/// As GradScaler, for gradients that are all on one device: the scale, the count and what was found stay there, and
/// nothing here waits for them. Scales are tensors of float64 without dimensions; the bits are GradScaler's.
/// Thread safety: one thread at a time.
class DeviceGradScaler {
 public:
  DeviceGradScaler(const GradScalerOptions& options, const GradScalerState& state, at::Device device);

  at::Device device() const { return scale_.device(); }
  /// Another tensor after each update().
  const at::Tensor& scale() const noexcept { return scale_; }
  void unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& made_with);
  /// One number of float32: 1 if a gradient that was unscaled since the last update() is not finite. Its owner makes
  /// ranks agree on it before update(), after which it is another tensor.
  const at::Tensor& found_inf() const noexcept { return found_; }
  void update(const at::Tensor& made_with);
  /// The numbers of GradScalerState in the order of its fields, of float64.
  at::Tensor state() const;

 private:
  void clear_found();

  GradScalerOptions options_;
  at::Tensor scale_, tracker_, found_;
};

}  // namespace muster::precision
