#include "muster/precision/policy.h"

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

namespace muster::precision {

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device) : device_(device) {
  if (precision.kind() != PrecisionKind::bf16_mixed) return;
  before_ = Before{at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::set_autocast_dtype(device, at::kBFloat16);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(device_, before_->dtype);
  at::autocast::set_autocast_enabled(device_, before_->enabled);
}

at::ScalarType PrecisionPolicy::parameter_dtype() const noexcept {
  switch (precision_.kind()) {
    case PrecisionKind::f64_true: return at::kDouble;
    case PrecisionKind::bf16_true: return at::kBFloat16;
    default: return at::kFloat;
  }
}

void PrecisionPolicy::convert_module(torch::nn::Module& module) const {
  // 32-true leaves a module of another dtype as its author made it.
  if (parameter_dtype() != at::kFloat) module.to(parameter_dtype());
}

void PrecisionPolicy::convert_input(at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_floating_point() || parameter_dtype() == at::kFloat) return;
  if (tensor.scalar_type() != parameter_dtype()) tensor = tensor.to(parameter_dtype());
}

void PrecisionPolicy::convert_output(at::Tensor& tensor) const {
  if (!tensor.defined()) return;
  const auto dtype = tensor.scalar_type();
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (half && precision_.kind() != PrecisionKind::f32_true) tensor = tensor.to(at::kFloat);
}

}  // namespace muster::precision
