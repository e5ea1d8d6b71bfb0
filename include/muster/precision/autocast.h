#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include "muster/precision/options.h"

namespace muster {

/// How an autocast scope differs from the settings of the precision.
struct AutocastOptions {
  bool cache_enabled = true;  ///< keep the cast copies of weights until the outermost scope closes
  bool enabled = true;        ///< off: operators run in the dtype of their inputs, also inside an autocast scope
};

namespace precision {
/// Turns autocast on or off for one device type, until the scope is destroyed. Scopes nest; the cast copies of weights
/// are dropped when the outermost one closes. Thread safety: belongs to the thread that made it.
class [[nodiscard("name the scope: auto cast = ...")]] AutocastScope {
 public:
  /// Does nothing for a precision that is not mixed, unless it switches autocast off. A custom policy also enters its
  /// forward scope, unless autocast is switched off.
  /// Throws: what enter_forward() of a custom policy throws; autocast then stays as it was.
  AutocastScope(const Precision& precision, c10::DeviceType device, const AutocastOptions& options = {});
  ~AutocastScope();

 private:
  class Autocast;
  std::unique_ptr<Autocast> autocast_;
  PluginPointer custom_;  // the policy whose forward scope was entered
};
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
