#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/precision/autocast.h"
#include "muster/precision/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

namespace precision {

/// Dtypes to which floating-point inputs and outputs of a forward are cast, in place of those of the precision. Unset:
/// the dtype of the precision.
struct ForwardCasts {
  std::optional<at::ScalarType> inputs, outputs;
};

/// What a precision does to a module, its inputs and its outputs. A value type; thread-safe if the functions of the
/// custom policy (PrecisionPlugin) that it calls are.
class PrecisionPolicy {
 public:
  explicit PrecisionPolicy(Precision precision, ForwardCasts casts = {})
      : precision_(std::move(precision)), casts_(casts) {}
  const Precision& precision() const noexcept { return precision_; }

  /// Casts floating-point parameters and buffers in place; the user's handles stay valid. Changes nothing under
  /// "32-true" and mixed precisions. Calls the function of a custom policy instead: UsageError (MU310) if a parameter
  /// is missing afterwards.
  /// Submodules named in `fp32` ("norm", "blocks.3.head") and their submodules stay as they are.
  /// Throws: ConfigError (MU148), listing the existing names, for a name that no submodule has.
  void convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32 = {}) const;
  /// Casts floating-point inputs to ForwardCasts::inputs if set, else, except under "32-true", to the dtype of the
  /// parameters. Other inputs stay unchanged. A custom policy is called first, and replaces the cast to the dtype of
  /// the parameters.
  void convert_input(at::Tensor& tensor) const;
  /// Casts floating-point outputs to ForwardCasts::outputs if set. Else, except under "32-true", casts bfloat16 and
  /// float16 outputs to float32, in which losses and metrics are computed. A custom policy is called first, and
  /// replaces that cast.
  void convert_output(at::Tensor& tensor) const;
  /// The dtype of the parameters.
  at::ScalarType parameter_dtype() const;

 private:
  bool leaves_dtypes() const noexcept {
    return precision_.kind() == PrecisionKind::f32_true || precision_.kind() == PrecisionKind::custom;
  }

  Precision precision_;
  ForwardCasts casts_;
};

/// The dtype in which autocast computes; unset unless the precision is mixed.
std::optional<at::ScalarType> autocast_dtype(const Precision& precision);
inline bool is_mixed(const Precision& precision) { return autocast_dtype(precision).has_value(); }
/// The dtype in which most operators compute.
at::ScalarType compute_dtype(const Precision& precision);
/// Whether losses are scaled, unless the program's options switch scaling off.
bool scales_losses(const Precision& precision);

/// Casts floating-point parameters and buffers of the module in place, apart from those in submodules named in `fp32`.
void cast_module(torch::nn::Module& module, at::ScalarType dtype, const std::vector<std::string>& fp32);

/// The precisions in which the device computes, found by a product of two small matrices in each dtype.
std::vector<std::string> supported_precisions(at::Device device);
/// Throws: ConfigError (MU145) for a precision in which the device does not compute, naming those in which it does.
void require_supported(const Precision& precision, at::Device device);

}  // namespace precision

}  // namespace muster
