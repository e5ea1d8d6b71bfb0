#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>

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

}  // namespace muster::runtime
