#pragma once

#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "muster/precision/autocast.h"

namespace muster {

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
