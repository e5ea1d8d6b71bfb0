#pragma once

#include "muster/precision/options.h"

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace muster {

/// How a scope of autocast differs from what the precision says.
struct AutocastOptions {
  bool cache_enabled = true;   ///< keep the cast copies of weights until the outermost scope closes
  bool enabled = true;         ///< off: operators run in the dtype of their inputs, also inside of an autocast scope
};

namespace precision {

/// Turns autocast on for one device type, or off, until it is destroyed. Scopes nest; the cast copies of weights are dropped
/// when the outermost one closes. Thread safety: belongs to the thread that made it.
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

/// Dtypes that floating inputs and outputs of a forward are converted into, whatever the precision says. Unset: as it says.
struct ForwardCasts {
  std::optional<at::ScalarType> inputs, outputs;
};

/// What a precision does to a module, its inputs and its outputs. A value; thread-safe.
class PrecisionPolicy {
 public:
  explicit PrecisionPolicy(Precision precision, ForwardCasts casts = {}) : precision_(precision), casts_(casts) {}
  Precision precision() const noexcept { return precision_; }

  /// Casts floating parameters and buffers in place; the user's handles stay valid. Nothing for mixed precision.
  /// Submodules named in `fp32` ("norm", "blocks.3.head") and what is below them stay as they are.
  /// Throws: ConfigError (MU148) for a name that no submodule has, listing those there are.
  void convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32 = {}) const;
  /// Floating inputs become the dtype of the parameters, except under "32-true", or that of the casts; everything else stays.
  void convert_input(at::Tensor& tensor) const;
  /// Except under "32-true", bfloat16 and float16 outputs become float32: losses and metrics are computed in it. With a cast all
  /// floating ones become its dtype.
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

/// The precisions that the device computes in, found by a product of two small matrices in each dtype.
std::vector<std::string> supported_precisions(at::Device device);
/// Throws: ConfigError (MU145) for a precision that the device does not compute in, naming those it does.
void require_supported(Precision precision, at::Device device);

}  // namespace precision

/// Calls f with autocast off and floating tensors among the inputs as float32: for the part of a forward that needs the range or
/// the accuracy, such as a norm whose module is kept in float32.
template <class F, class... A>
auto in_fp32(F&& f, const A&... inputs) {
  const auto wide = [](const auto& input) -> decltype(auto) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(input)>, at::Tensor>)
      return input.defined() && input.is_floating_point() ? input.to(at::kFloat) : at::Tensor(input);
    else
      return input;
  };
  const precision::AutocastScope cpu("32-true", at::kCPU, {.enabled = false}), cuda("32-true", at::kCUDA, {.enabled = false});
  return std::forward<F>(f)(wide(inputs)...);
}

}  // namespace muster
