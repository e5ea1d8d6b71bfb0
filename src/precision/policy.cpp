#include "muster/precision/detail/policy.h"

#include <algorithm>

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>

#include "muster/base/error.h"

namespace muster::precision {

std::optional<at::ScalarType> autocast_dtype(Precision precision) noexcept {
  if (precision.kind() == PrecisionKind::bf16_mixed) return at::kBFloat16;
  if (precision.kind() == PrecisionKind::f16_mixed) return at::kHalf;
  return std::nullopt;
}

at::ScalarType compute_dtype(Precision precision) noexcept {
  return autocast_dtype(precision).value_or(PrecisionPolicy(precision).parameter_dtype());
}

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device, AutocastOptions options) : device_(device) {
  const auto dtype = autocast_dtype(precision);
  if (options.enabled && !dtype) return;
  before_ = Before{at::autocast::is_autocast_cache_enabled(), at::autocast::is_autocast_enabled(device),
                   at::autocast::get_autocast_dtype(device)};
  // LibTorch keeps cast copies by tensor, whatever they were cast to.
  if (options.enabled && before_->dtype != *dtype) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device, options.enabled);
  if (options.enabled) at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!before_) return;
  if (at::autocast::decrement_nesting() == 0 || at::autocast::get_autocast_dtype(device_) != before_->dtype)
    at::autocast::clear_cache();
  at::autocast::set_autocast_cache_enabled(before_->cache);
  at::autocast::set_autocast_dtype(device_, before_->dtype);
  at::autocast::set_autocast_enabled(device_, before_->enabled);
}

at::ScalarType PrecisionPolicy::parameter_dtype() const noexcept {
  switch (precision_.kind()) {
    case PrecisionKind::f64_true: return at::kDouble;
    case PrecisionKind::bf16_true: return at::kBFloat16;
    case PrecisionKind::f16_true: return at::kHalf;
    default: return at::kFloat;
  }
}

namespace {

bool lies_below(const std::string& name, const std::string& above) {
  return name == above || (name.starts_with(above) && name[above.size()] == '.');
}

/// Parameters and buffers of this module itself, not of those below it.
void convert_own(torch::nn::Module& module, at::ScalarType dtype) {
  const auto convert = [dtype](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype)
      // Not another tensor: the module's members and the optimizer's groups hold this one.
      tensor.set_data(tensor.to(dtype));
  };
  for (auto& parameter : module.parameters(/*recurse=*/false)) convert(parameter);
  for (auto& buffer : module.buffers(/*recurse=*/false)) convert(buffer);
}

void require_names(const torch::nn::Module& module, const std::vector<std::string>& names) {
  std::string known;
  const auto children = module.named_modules("", /*include_self=*/false);
  for (const auto& child : children) known += (known.empty() ? "" : ", ") + child.key();
  for (const auto& name : names)
    if (!children.contains(name))
      throw ConfigError("MU148", "no submodule of " + module.name() + " is named '" + name +
                                     "', which is to stay in float32; there are " + (known.empty() ? "none" : known));
}

}  // namespace

void PrecisionPolicy::convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32) const {
  const auto dtype = parameter_dtype();
  if (fp32.empty()) {
    // 32-true leaves a module of another dtype as its author made it.
    if (dtype != at::kFloat) module.to(dtype);
    return;
  }
  require_names(module, fp32);
  if (dtype == at::kFloat) return;
  convert_own(module, dtype);
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    const auto stays = [&](const std::string& name) { return lies_below(child.key(), name); };
    if (std::none_of(fp32.begin(), fp32.end(), stays)) convert_own(*child.value(), dtype);
  }
}

void PrecisionPolicy::convert_input(at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.is_floating_point()) return;
  if (!casts_.inputs && precision_.kind() == PrecisionKind::f32_true) return;
  tensor = tensor.to(casts_.inputs.value_or(parameter_dtype()));
}

void PrecisionPolicy::convert_output(at::Tensor& tensor) const {
  if (!tensor.defined()) return;
  if (casts_.outputs) {
    if (tensor.is_floating_point()) tensor = tensor.to(*casts_.outputs);
    return;
  }
  const auto dtype = tensor.scalar_type();
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (half && precision_.kind() != PrecisionKind::f32_true) tensor = tensor.to(at::kFloat);
}

}  // namespace muster::precision
