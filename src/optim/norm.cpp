#include "muster/optim/detail/norm.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/flat_parameters.h"
#include "optim/device_sum.h"
#include "optim/exact_sum.h"

namespace muster::optim {
namespace {

static_assert(kFlatPadding % kSumBlock == 0, "gradients are cut where blocks of a sum end");

at::Tensor largest(const std::vector<at::Tensor>& tensors) {
  std::map<at::DeviceIndex, at::Tensor> largest_on;  // keyed by the device index; -1: the CPU
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    const auto one = at::linalg_vector_norm(tensor, INFINITY).to(at::kDouble);
    auto& most = largest_on[tensor.device().index()];
    most = most.defined() ? at::maximum(most, one) : one;  // a NaN stays a NaN
  }
  auto most = at::zeros({}, at::kDouble);
  for (const auto& [index, one] : largest_on) most = at::maximum(most, one.cpu());
  return most;
}

void add_host_elements(ExactSum& sum, const at::Tensor& flat, double p) {
  if (flat.scalar_type() == at::kDouble) add_powers(sum, flat.const_data_ptr<double>(), flat.numel(), p);
  else add_powers(sum, flat.const_data_ptr<float>(), flat.numel(), p);
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  auto real = tensor.is_complex() ? tensor.abs() : tensor;
  if (!real.is_non_overlapping_and_dense()) real = real.contiguous();
  const auto flat = real.as_strided({real.numel()}, {1});
  return flat.scalar_type() == at::kDouble ? flat : flat.to(at::kFloat);
}

void require_order(double p) {
  if (!(p > 0))
    throw ConfigError("MU144",
                      formatted("gradients are to be clipped by a norm of order {}; give one above 0, or infinity", p));
}

at::Tensor unrounded_power_sum(const std::vector<at::Tensor>& tensors, double p) {
  require_order(p);
  at::NoGradGuard no_grad;
  if (std::isinf(p)) return largest(tensors);
  ExactSum sum;
  std::map<at::DeviceIndex, std::vector<at::Tensor>> on_devices;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (tensor.is_cpu()) add_host_elements(sum, in_memory_order(tensor), p);
    else on_devices[tensor.device().index()].push_back(in_memory_order(tensor));
  }
  for (const auto& [index, on_one] : on_devices) add_device_powers(sum, on_one, p);
  const auto words = sum.words();
  return at::tensor(at::ArrayRef<int64_t>(words.data(), words.size()));
}

double rounded_power_sum(const at::Tensor& unrounded, double p) {
  if (std::isinf(p)) return unrounded.item<double>();
  ExactSum::Words words;
  std::copy_n(unrounded.const_data_ptr<int64_t>(), words.size(), words.begin());
  return ExactSum::value(words);
}

double power_sum(const std::vector<at::Tensor>& tensors, double p) {
  return rounded_power_sum(unrounded_power_sum(tensors, p), p);
}

double norm_from_power_sum(double sum, double p) {
  if (std::isinf(p)) return sum;
  return p == 2.0 ? std::sqrt(sum) : std::pow(sum, 1.0 / p);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 || std::isnan(coefficient) ? coefficient : 1.0;
}

at::Tensor wrapped_number(double value) {
  auto number = at::scalar_tensor(value, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

void scale_by(const at::Tensor& tensor, double factor) { tensor.mul_(wrapped_number(factor)); }

}  // namespace muster::optim
