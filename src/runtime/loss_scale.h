#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>

#include "device/order.h"
#include "muster/precision/grad_scaler.h"

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

/// Tells whether a step on a device found an infinite or NaN gradient (GradScaler's found_inf), or a non-finite norm
/// that had to be finite. The host learns of it when the next step begins, or when it asks. Until then the flag is on
/// its way to pinned memory, so a whole forward and backward hide the wait.
/// Thread safety: one thread at a time. Why: docs/decisions/0142-a-step-is-known-when-the-next-one-begins.md.
class FoundInf {
 public:
  struct Known {
    bool skipped = false;
    std::optional<std::pair<double, double>> bad_norm;  ///< an infinite or NaN norm to report, and its order
    std::optional<GradScalerState> scaler;
  };

  /// Skips the next step if this flag, a float32 of one element on a device, is 1.
  void skip_if(const at::Tensor& flag);
  /// Skips the next step if the norm is not finite, and known() then reports it; of several such norms, the first.
  void report(const at::Tensor& norm, double order);
  /// Forgets the calls of skip_if() and report(), since the gradients are gone. The host waits if there is a norm to
  /// report. Returns a norm that is not finite, and its order.
  std::optional<std::pair<double, double>> drop();
  /// Forgets the calls of skip_if() and report() without a report: the gradients are replaced by others.
  void forget() {
    flag_.reset();
    norm_.reset();
  }
  /// Sends the flags of this step to the host. `found` and `scaler` are DeviceGradScaler's, or undefined. Returns the
  /// flag of the step, undefined if nothing can make it skip.
  at::Tensor send(const at::Tensor& found, const at::Tensor& scaler);
  /// True while the outcome of the last step is unknown.
  bool pending() const noexcept { return pending_; }
  /// The outcome of the last step; the host waits for it.
  Known known();
  /// Registers a call for when the outcome of the step is known.
  void then(std::function<void()> call) { calls_.push_back(std::move(call)); }
  bool has_calls() const noexcept { return !calls_.empty(); }
  std::vector<std::function<void()>> take_calls() { return std::exchange(calls_, {}); }

 private:
  at::Tensor flag_, norm_;  // `norm_`: a norm, and its order
  bool scales_ = false;
  bool reports_ = false;
  bool pending_ = false;
  at::Tensor on_host_;
  device::Event sent_;
  std::vector<std::function<void()>> calls_;
};

}  // namespace muster::runtime
