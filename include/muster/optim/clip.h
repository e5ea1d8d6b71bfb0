#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "muster/base/format.h"
#include "muster/optim/options.h"

namespace muster {

/// A norm of gradients. The norm of gradients on a device stays there until it is converted to a number; the first
/// conversion reads it, and the host waits for the device. Thread safety: one thread at a time.
class GradNorm {
 public:
  GradNorm(double value = 0) : value_(value) {}
  /// `on_device`: a tensor with one element.
  explicit GradNorm(at::Tensor on_device) : on_device_(std::move(on_device)) {}
  operator double() const;
  /// The norm on its device, without waiting; undefined if it was computed on the host.
  const at::Tensor& on_device() const noexcept { return on_device_; }
  /// numel() and item(), as of a tensor with one element, which is what norms are in Python.
  static constexpr int64_t numel() noexcept { return 1; }
  template <class T = double>
  T item() const {
    return static_cast<T>(static_cast<double>(*this));
  }

 private:
  mutable std::optional<double> value_;
  at::Tensor on_device_;
};

/// One norm for each parameter group.
class GradNorms : public std::vector<GradNorm> {
 public:
  using std::vector<GradNorm>::vector;
  operator std::vector<double>() const { return {begin(), end()}; }
};

namespace base {
template <>
inline FormatValue format_value(const GradNorm& norm) {
  return static_cast<double>(norm);
}
}  // namespace base

// Clipping of gradients that are whole in grad(). For a prepared model, call the Accelerator's or Fabric's functions,
// which know where the strategy keeps gradients and use the arithmetic of these functions. A tensor that is listed
// twice counts once: LibTorch's parameters() lists tied weights twice.

namespace optim {

/// What clipping does with gradients of a given norm.
struct ClipDecision {
  double factor = 1.0;  ///< gradients are multiplied by this factor
  bool drop = false;    ///< clear the gradients instead, so that the next step updates nothing
};

/// Throws: UsageError (MU143) for a norm that is infinite or not a number, with NonFinite::error.
ClipDecision decide_clip(double norm, double max_norm, NonFinite non_finite);

/// Returns one bound per group. Throws: ConfigError (MU135) unless there is one value or `groups` values.
std::vector<double> clip_bounds(const PerGroup<double>& max_norm, size_t groups);

}  // namespace optim

/// Scales the parameters' gradients so that their norm of order norm_type (any above 0, or infinity) is at most
/// max_norm; returns the norm before clipping. On a device the host does not wait for the norm until it is read, except
/// with NonFinite::error and NonFinite::skip, which wait for it here.
/// Throws: ConfigError (MU144) unless norm_type > 0; as decide_clip.
GradNorm clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, ClipNormOptions options = {});
/// Clips each parameter group separately, with one max_norm or one for each group; returns the norms. If the norm of
/// one group is not finite, NonFinite::error and NonFinite::skip apply to all groups, so that a step never updates only
/// some of them.
GradNorms clip_grad_norm_(torch::optim::Optimizer& optimizer, const PerGroup<double>& max_norm,
                          ClipNormOptions options = {});
/// Clamps every element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace muster
