#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/base/format.h"

namespace muster {

/// A norm of gradients. That of gradients on a device stays there until somebody looks at it: converted to a number it
/// is read, once, and the host waits for the device. Thread safety: one thread at a time.
class GradNorm {
 public:
  GradNorm(double value = 0) : value_(value) {}
  /// `on_device`: one number.
  explicit GradNorm(at::Tensor on_device) : on_device_(std::move(on_device)) {}
  operator double() const;
  /// The number where it is, for which nothing waits; undefined where it was on the host from the first.
  const at::Tensor& on_device() const noexcept { return on_device_; }
  /// As a tensor with one element has them, which norms are in Python.
  static constexpr int64_t numel() noexcept { return 1; }
  template <class T = double>
  T item() const {
    return static_cast<T>(static_cast<double>(*this));
  }

 private:
  mutable std::optional<double> value_;
  at::Tensor on_device_;
};

/// One for each parameter group.
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
