#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/format.h"

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

}  // namespace muster
