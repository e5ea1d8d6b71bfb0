#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/precision/options.h"

namespace torch::nn {
class Module;
}

namespace muster {

/// How an autocast scope differs from the precision's own settings.
struct AutocastOptions {
  bool cache_enabled = true;  ///< keep the cast copies of weights until the outermost scope closes
  bool enabled = true;        ///< off: operators run in the dtype of their inputs, also inside an autocast scope
};

namespace precision {

/// Turns autocast on or off for one device type, until the scope is destroyed. Scopes nest; the cast copies of weights
/// are dropped when the outermost one closes. Thread safety: belongs to the thread that made it.
class [[nodiscard("name the scope: auto cast = ...")]] AutocastScope {
 public:
  /// Does nothing for a precision that is not mixed, unless it switches autocast off.
  AutocastScope(Precision precision, c10::DeviceType device, AutocastOptions options = {});
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;
  ~AutocastScope();

 private:
  struct Before {
    bool cache;
    bool enabled;
    at::ScalarType dtype;
  };
  c10::DeviceType device_;
  std::optional<Before> before_;
};

/// Dtypes to which floating-point inputs and outputs of a forward are cast, in place of those of the precision. Unset:
/// as the precision says.
struct ForwardCasts {
  std::optional<at::ScalarType> inputs, outputs;
};

/// What a precision does to a module, its inputs and its outputs. A value type; thread-safe.
class PrecisionPolicy {
 public:
  explicit PrecisionPolicy(Precision precision, ForwardCasts casts = {}) : precision_(precision), casts_(casts) {}
  Precision precision() const noexcept { return precision_; }

  /// Casts floating-point parameters and buffers in place; the user's handles stay valid. Changes nothing under
  /// "32-true" and mixed precisions.
  /// Submodules named in `fp32` ("norm", "blocks.3.head") and their submodules stay as they are.
  /// Throws: ConfigError (MU148) for a name that no submodule has, listing those there are.
  void convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32 = {}) const;
  /// Casts floating-point inputs to ForwardCasts::inputs if set, else, except under "32-true", to the dtype of the
  /// parameters. Every other input stays.
  void convert_input(at::Tensor& tensor) const;
  /// Casts floating-point outputs to ForwardCasts::outputs if set. Else, except under "32-true", casts bfloat16 and
  /// float16 outputs to float32, in which losses and metrics are computed.
  void convert_output(at::Tensor& tensor) const;
  /// The dtype of the parameters.
  at::ScalarType parameter_dtype() const noexcept;

 private:
  Precision precision_;
  ForwardCasts casts_;
};

/// The dtype in which autocast computes; unset where the precision is not mixed.
std::optional<at::ScalarType> autocast_dtype(Precision precision) noexcept;
inline bool is_mixed(Precision precision) noexcept { return autocast_dtype(precision).has_value(); }
/// The dtype in which most operators compute.
at::ScalarType compute_dtype(Precision precision) noexcept;

/// The precisions in which the device computes, found by a product of two small matrices in each dtype.
std::vector<std::string> supported_precisions(at::Device device);
/// Throws: ConfigError (MU145) for a precision in which the device does not compute, naming those in which it does.
void require_supported(Precision precision, at::Device device);

}  // namespace precision

/// Calls f with autocast off and floating-point tensors among the inputs cast to float32: for the part of a forward
/// that needs the range or the accuracy, such as a norm whose module is kept in float32.
template <class F, class... A>
auto in_fp32(F&& f, const A&... inputs) {
  const auto wide = [](const auto& input) -> decltype(auto) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(input)>, at::Tensor>)
      return input.defined() && input.is_floating_point() ? input.to(at::kFloat) : at::Tensor(input);
    else return input;
  };
  const precision::AutocastScope cpu("32-true", at::kCPU, {.enabled = false}),
      cuda("32-true", at::kCUDA, {.enabled = false});
  return std::forward<F>(f)(wide(inputs)...);
}

}  // namespace muster
