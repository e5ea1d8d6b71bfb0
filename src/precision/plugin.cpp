#include "muster/precision/plugin.h"

#include <algorithm>

#include "muster/base/error.h"
#include "muster/precision/policy.h"

namespace muster {
namespace {

std::shared_ptr<PrecisionPlugin> usable(std::shared_ptr<PrecisionPlugin> custom) {
  if (!custom)
    throw UsageError("MU310",
                     "the precision policy given is an empty pointer; make it first, for example by "
                     "std::make_shared<Mine>(), or give a name such as \"bf16-mixed\"");
  const auto name = custom->name();
  const auto& known = precision::kPrecisionNames;
  if (name.empty() ||
      std::any_of(std::begin(known), std::end(known), [&](const auto& one) { return one.name == name; }))
    throw UsageError("MU310", "a custom precision policy is named '" + std::string(name) +
                                  "'; let name() return one that no built-in precision has, so that plans and messages "
                                  "can be understood");
  return custom;
}

}  // namespace

// Defined here because the other constructors are in a library that does not know tensors.
Precision::Precision(std::shared_ptr<PrecisionPlugin> custom)
    : kind_(PrecisionKind::custom), custom_(usable(std::move(custom))), custom_name_(custom_.get()->name()) {}

void PrecisionPlugin::convert_module(torch::nn::Module& module, const std::vector<std::string>& fp32) {
  precision::cast_module(module, parameter_dtype(), fp32);
}

void PrecisionPlugin::convert_input(at::Tensor& tensor) {
  if (tensor.is_floating_point()) tensor = tensor.to(parameter_dtype());
}

void PrecisionPlugin::convert_output(at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kBFloat16 || dtype == at::kHalf) tensor = tensor.to(at::kFloat);
}

}  // namespace muster
