#include <exception>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "base/listing.h"
#include "muster/base/error.h"
#include "muster/precision/policy.h"
#include "precision/emulation.h"

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

}  // namespace muster::precision
