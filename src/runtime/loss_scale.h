#pragma once

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>

#include "muster/precision/grad_scaler.h"
#include "precision/device_grad_scaler.h"

namespace muster::runtime {

/// A scale of losses and gradients: a number, or on a device a tensor that the host does not read.
struct LossScale {
  double number = 1;          ///< scale on the host; unused if there is a tensor
  at::Tensor on_device = {};  ///< float64 scalar tensor; undefined on the host

  /// The scale as a number; the host waits for a tensor.
  double value() const { return on_device.defined() ? on_device.item<double>() : number; }
  at::Tensor on(at::Device device) const {
    return on_device.defined() ? on_device : at::full({}, number, at::TensorOptions(at::kDouble).device(device));
  }
  /// True if the scales are known to be equal without reading a tensor.
  friend bool operator==(const LossScale& a, const LossScale& b) {
    return a.on_device.defined() || b.on_device.defined() ? a.on_device.is_same(b.on_device) : a.number == b.number;
  }
};

/// The smallest of several scales; it returns a new tensor only when one of them has changed. Thread safety: one thread
/// at a time.
class SmallestScale {
 public:
  /// Requires: `scales` is not empty.
  LossScale of(std::vector<LossScale> scales) {
    if (scales != scales_) {
      scales_ = std::move(scales);
      smallest_ = scales_.front();
      for (const auto& scale : scales_) smallest_ = smaller(smallest_, scale);
    }
    return smallest_;
  }

 private:
  static LossScale smaller(const LossScale& a, const LossScale& b) {
    if (a == b) return a;
    const auto& there = a.on_device.defined() ? a.on_device : b.on_device;
    if (!there.defined()) return {std::min(a.number, b.number)};
    return {.on_device = at::minimum(a.on(there.device()), b.on(there.device()))};
  }

  std::vector<LossScale> scales_;
  LossScale smallest_;
};

/// Loss scaling of one optimizer: the scale of its losses, which the host keeps or, where all parameters are on one
/// device, that device; and the scale of the gradients that its losses have made so far.
/// It does not communicate: its owner makes ranks agree on what was found before update(). Thread safety: one thread at
/// a time. Why: docs/decisions/0142-a-step-is-known-when-the-next-one-begins.md.
class LossScaling {
 public:
  /// What a checkpoint holds of it.
  struct Saved {
    double gradient_scale = 1, loss_scale = 1;
    GradScalerState scaler;
    bool found_inf = false;  ///< in gradients that wait for a step
  };

  explicit LossScaling(const GradScalerOptions& options) : options_(options), scaler_(options) {}

  /// Whether the scale is on a device that the parameters have left. If so, scale_on() requires that the last step is
  /// known.
  bool leaves_device(const std::optional<at::Device>& device) const {
    return on_device_ && on_device_->device() != device;
  }
  /// The scale of the next loss, which is moved to this device if it is elsewhere; nullopt: to the host. Never waits.
  LossScale scale_on(const std::optional<at::Device>& device);
  /// The factor by which gradients are too large.
  const LossScale& gradient_scale() const noexcept { return gradient_scale_; }
  /// Gradients have this scale now, since the next loss has it.
  void note_loss(const LossScale& scale);
  /// Whether gradients were unscaled since the last loss.
  bool unscaled() const noexcept { return unscaled_; }
  /// Whether gradients were checked since the last update.
  bool checked() const noexcept { return checked_; }
  /// Divides gradients by their scale, and records whether any of them is infinite or NaN.
  void unscale(const std::vector<at::Tensor>& gradients);
  /// Forgets what was found; the next unscale() checks the gradients again.
  void forget();
  /// The norm of unscaled gradients, which is equal on all ranks; a tensor if a device keeps the scale, else a number.
  void note_norm(double norm) { norm_ += norm; }
  void note_norm(const at::Tensor& norm) { norms_.push_back(norm); }
  /// The gradients were cleared. If a norm of them was infinite or NaN, the scale shrinks, since no step will learn of
  /// it. Never waits for a device. Throws: UsageError (MU318) if the scale of the host fell too low.
  void clear_gradients();

  /// Whether a device keeps the scale, and decides.
  bool on_device() const noexcept { return on_device_.has_value(); }
  /// DeviceGradScaler's found_inf(). Requires: on_device().
  at::Tensor device_found_inf() const { return on_device_->found_inf(); }
  /// Ends a step on the device; returns the numbers of GradScalerState there. Requires: on_device().
  at::Tensor update_on_device();
  /// Adopts what the device has computed. After an error the device no longer keeps the scale.
  /// Throws: UsageError (MU318) if the scale fell too low.
  void follow(const GradScalerState& state);

  /// GradScaler's found_inf(), or what a checkpoint held. Requires: not on_device().
  bool found_inf() const { return found_ || scaler_.found_inf(); }
  /// Ends a step on the host. Throws: UsageError (MU318). Requires: not on_device().
  void update(bool found_inf);

  // All that follow require that the last step is known.

  /// The host waits for a device.
  GradScalerState state() const;
  /// Throws: ConfigError (MU147).
  void load_state(const GradScalerState& state);
  /// The host waits for scales on a device.
  Saved save() const;
  /// Throws: ConfigError (MU147), and then changes nothing.
  void load(const Saved& saved);
  /// Throws: ConfigError (MU147) if load() would.
  void require_loadable(const GradScalerState& state) const { precision::GradScaler(options_).load_state_dict(state); }

 private:
  GradScalerOptions options_;
  precision::GradScaler scaler_;
  std::optional<precision::DeviceGradScaler> on_device_;  // replaces scaler_, which follows it
  LossScale loss_scale_;                                  // the scale of the last backward
  LossScale gradient_scale_;
  bool unscaled_ = false;
  bool checked_ = false;
  bool found_ = false;             // found_inf of a checkpoint; kept by the host
  double norm_ = 0;                // the sum of norms on the host: infinite or NaN if one of them was
  std::vector<at::Tensor> norms_;  // norms on the device, which the host does not read
};

}  // namespace muster::runtime
