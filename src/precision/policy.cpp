#include "muster/precision/policy.h"

#include <exception>

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/nn/module.h>

#include "base/text.h"
#include "emulation.h"
#include "muster/base/error.h"
#include "muster/precision/plugin.h"

namespace muster::precision {
namespace {

bool computes(at::ScalarType dtype, at::Device device) {
  try {
    const at::NoGradGuard no_grad;
    const auto ones = at::ones({2, 2}, at::TensorOptions().dtype(dtype).device(device));
    return at::mm(ones, ones).to(at::kCPU, at::kDouble)[0][0].item<double>() == 2.0;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::vector<std::string> supported_precisions(at::Device device) {
  std::vector<std::string> names;
  for (const auto& known : kPrecisionNames) {
    const auto precision = Precision::parse(known.name);
    if (precision.name() == known.name && computes(compute_dtype(precision), device)) names.emplace_back(known.name);
  }
  return names;
}

void require_supported(const Precision& precision, at::Device device) {
  if (computes(compute_dtype(precision), device)) return;
  throw ConfigError("MU145", "the device " + device.str() + " does not compute in precision '" +
                                 std::string(precision.name()) + "'; it does in " +
                                 listed(supported_precisions(device)));
}

std::optional<std::string> emulation_on_cpu(const Precision& precision, bool multiplies_bfloat16) {
  const auto dtype = compute_dtype(precision);
  const bool mixed = is_mixed(precision);
  const std::string native = !multiplies_bfloat16 ? "32-true" : mixed ? "bf16-mixed" : "bf16-true";
  if (dtype == at::kHalf)
    return std::string(precision.name()) + " on a CPU emulates float16, which is slow" +
           (mixed ? ", and runs LSTM in float32" : "") + "; " + native + " computes natively there";
  if (dtype == at::kBFloat16 && !multiplies_bfloat16)
    return std::string(precision.name()) +
           " emulates bfloat16, which this processor does not compute in: two to three times slower than 32-true, "
           "which it does";
  return std::nullopt;
}

std::optional<at::ScalarType> autocast_dtype(const Precision& precision) {
  switch (precision.kind()) {
    case PrecisionKind::bf16_mixed: return at::kBFloat16;
    case PrecisionKind::f16_mixed: return at::kHalf;
    case PrecisionKind::custom: return precision.custom().get()->autocast_dtype();
    default: return std::nullopt;
  }
}

at::ScalarType compute_dtype(const Precision& precision) {
  if (const auto* custom = precision.custom().get()) return custom->compute_dtype();
  return autocast_dtype(precision).value_or(PrecisionPolicy(precision).parameter_dtype());
}

bool scales_losses(const Precision& precision) {
  const auto* custom = precision.custom().get();
  return custom ? custom->scales_losses() : precision.kind() == PrecisionKind::f16_mixed;
}

/// Autocast of a device type until the object is destroyed.
class AutocastScope::Autocast {
 public:
  Autocast(c10::DeviceType device, std::optional<at::ScalarType> dtype, const AutocastOptions& options)
      : device_(device), dtype_before_(at::autocast::get_autocast_dtype(device)),
        cache_before_(at::autocast::is_autocast_cache_enabled()),
        enabled_before_(at::autocast::is_autocast_enabled(device)) {
    // LibTorch caches cast copies by tensor, whatever dtype they were cast to.
    if (options.enabled && dtype_before_ != *dtype) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, options.enabled);
    if (options.enabled) at::autocast::set_autocast_dtype(device_, *dtype);
    at::autocast::set_autocast_cache_enabled(options.cache_enabled);
    at::autocast::increment_nesting();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0 || at::autocast::get_autocast_dtype(device_) != dtype_before_)
      at::autocast::clear_cache();
    at::autocast::set_autocast_cache_enabled(cache_before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
    at::autocast::set_autocast_enabled(device_, enabled_before_);
  }

 private:
  c10::DeviceType device_;
  at::ScalarType dtype_before_;
  bool cache_before_, enabled_before_;
};

AutocastScope::AutocastScope(const Precision& precision, c10::DeviceType device, const AutocastOptions& options) {
  const auto dtype = autocast_dtype(precision);
  if (!options.enabled || dtype) autocast_ = std::make_unique<Autocast>(device, dtype, options);
  if (precision.kind() != PrecisionKind::custom || !options.enabled) return;
  precision.custom().get()->enter_forward();
  custom_ = precision.custom();
}

AutocastScope::~AutocastScope() {
  if (auto* custom = custom_.get()) custom->leave_forward();
}

at::ScalarType PrecisionPolicy::parameter_dtype() const {
  switch (precision_.kind()) {
    case PrecisionKind::f64_true: return at::kDouble;
    case PrecisionKind::bf16_true: return at::kBFloat16;
    case PrecisionKind::f16_true: return at::kHalf;
    case PrecisionKind::custom: return precision_.custom().get()->parameter_dtype();
    default: return at::kFloat;
  }
}

namespace {

/// Parameters and buffers of this module itself, not of those below it.
void cast_own(torch::nn::Module& module, at::ScalarType dtype) {
  const auto convert = [dtype](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point() && tensor.scalar_type() != dtype)
      // Keeps the tensor object: the module's members and the optimizer's groups hold it.
      tensor.set_data(tensor.to(dtype));
  };
  for (auto& parameter : module.parameters(/*recurse=*/false)) convert(parameter);
  for (auto& buffer : module.buffers(/*recurse=*/false)) convert(buffer);
}

void require_names(const torch::nn::Module& module, const std::vector<std::string>& names) {
  const auto children = module.named_modules("", /*include_self=*/false);
  for (const auto& name : names)
    if (!children.contains(name))
      throw ConfigError("MU148", "no submodule of " + module.name() + " is named '" + name +
                                     "', which is to stay in float32; there are " +
                                     listed(children, [](const auto& child) { return child.key(); }));
}

}  // namespace

void cast_module(torch::nn::Module& module, at::ScalarType dtype, const std::vector<std::string>& fp32) {
  if (fp32.empty()) {
    // 32-true leaves a module of another dtype as its author made it.
    if (dtype != at::kFloat) module.to(dtype);
    return;
  }
  require_names(module, fp32);
  if (dtype == at::kFloat) return;
  cast_own(module, dtype);
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    const auto stays = [&](const std::string& name) {
      return child.key() == name || child.key().starts_with(name + ".");
    };
    if (std::none_of(fp32.begin(), fp32.end(), stays)) cast_own(*child.value(), dtype);
  }
}

void PrecisionPolicy::convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32) const {
  auto* custom = precision_.custom().get();
  if (!custom) return cast_module(module, parameter_dtype(), fp32);
  require_names(module, fp32);
  const auto before = module.named_parameters();
  custom->convert_module(module, fp32);
  const auto after = module.parameters();
  for (const auto& known : before)
    if (std::none_of(after.begin(), after.end(), [&](const at::Tensor& one) { return one.is_same(known.value()); }))
      throw UsageError("MU310", "convert_module() of the precision policy '" + std::string(custom->name()) +
                                    "' has replaced parameter " + known.key() + " of " + module.name() +
                                    ", which optimizers and the program may hold; cast its values in place, by "
                                    "Module::to or parameter.set_data()");
}

void PrecisionPolicy::convert_input(at::Tensor& tensor) const {
  if (auto* custom = precision_.custom().get(); custom && tensor.defined()) custom->convert_input(tensor);
  if (!tensor.defined() || !tensor.is_floating_point()) return;
  if (!casts_.inputs && leaves_dtypes()) return;
  tensor = tensor.to(casts_.inputs.value_or(parameter_dtype()));
}

void PrecisionPolicy::convert_output(at::Tensor& tensor) const {
  if (auto* custom = precision_.custom().get(); custom && tensor.defined()) custom->convert_output(tensor);
  if (!tensor.defined()) return;
  if (casts_.outputs) {
    if (tensor.is_floating_point()) tensor = tensor.to(*casts_.outputs);
    return;
  }
  const auto dtype = tensor.scalar_type();
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  if (half && !leaves_dtypes()) tensor = tensor.to(at::kFloat);
}

}  // namespace muster::precision
