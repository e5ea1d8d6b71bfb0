#pragma once

#include "muster/precision/options.h"

#include <ATen/core/Tensor.h>

#include <optional>

namespace torch::nn {
class Module;
}

namespace muster::precision {

/// Turns autocast on for one device type, until it is destroyed. Scopes nest; the cast copies of weights are dropped
/// when the outermost one closes. Thread safety: belongs to the thread that made it.
class [[nodiscard("name the scope: auto cast = ...")]] AutocastScope {
 public:
  /// Does nothing for a precision that is not mixed.
  AutocastScope(Precision precision, c10::DeviceType device);
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  struct Before {
    bool enabled;
    at::ScalarType dtype;
  };
  c10::DeviceType device_;
  std::optional<Before> before_;
};

/// What a precision does to a module, its inputs and its outputs. A value; thread-safe.
class PrecisionPolicy {
 public:
  explicit PrecisionPolicy(Precision precision) : precision_(precision) {}
  Precision precision() const noexcept { return precision_; }

  /// Casts floating parameters and buffers in place; the user's handles stay valid. Nothing for mixed precision.
  void convert_module(torch::nn::Module& module) const;
  /// Under "bf16-true" and "64-true" floating inputs become the dtype of the parameters; everything else stays.
  void convert_input(at::Tensor& tensor) const;
  /// Except under "32-true", bfloat16 and float16 outputs become float32: losses and metrics are computed in it.
  void convert_output(at::Tensor& tensor) const;
  /// The dtype of the parameters.
  at::ScalarType parameter_dtype() const noexcept;

 private:
  Precision precision_;
};

}  // namespace muster::precision
