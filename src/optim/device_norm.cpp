#include "optim/device_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "muster/optim/detail/norm.h"
#include "optim/device_sum.h"

namespace muster {

GradNorm::operator double() const {
  if (!value_) value_ = on_device_.item<double>();
  return *value_;
}

namespace optim {
namespace {

at::Tensor largest(const std::vector<at::Tensor>& tensors, at::Device device) {
  auto most = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  for (const auto& tensor : tensors)
    if (tensor.numel() > 0)
      most = at::maximum(most, at::linalg_vector_norm(tensor, INFINITY).to(at::kDouble));  // a NaN stays a NaN
  return most;
}

at::Tensor words_of_all(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  std::vector<at::Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(in_memory_order(tensor));
  const auto words = device_words(flat, p);
  return words.defined() ? words : at::zeros({kSumWords}, at::TensorOptions(at::kLong).device(device));
}

}  // namespace

std::optional<at::Device> single_device_of(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty() || tensors.front().is_cpu()) return std::nullopt;
  const auto device = tensors.front().device();
  const bool all = std::all_of(tensors.begin(), tensors.end(), [&](const auto& one) { return one.device() == device; });
  return all ? std::optional(device) : std::nullopt;
}

at::Tensor device_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  require_order(p);
  const at::NoGradGuard no_grad;
  return std::isinf(p) ? largest(tensors, device) : rounded(words_of_all(tensors, device, p));
}

at::Tensor device_unrounded_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p) {
  require_order(p);
  const at::NoGradGuard no_grad;
  return std::isinf(p) ? largest(tensors, device) : with_carries(words_of_all(tensors, device, p));
}

at::Tensor device_rounded_power_sum(const at::Tensor& unrounded, double p) {
  return std::isinf(p) ? unrounded : rounded(unrounded);
}

at::Tensor added_power_sums(const at::Tensor& a, const at::Tensor& b, double p) {
  return std::isinf(p) ? at::maximum(a, b) : a + b;
}

at::Tensor norm_from_power_sum(const at::Tensor& sum, double p) {
  if (std::isinf(p)) return sum;
  return p == 2.0 ? sum.sqrt() : sum.pow(1.0 / p);
}

at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm) {
  const auto one = at::full({}, 1.0, norm.options()), most = at::full({}, max_norm, norm.options());
  const auto coefficient = at::div(most, norm + 1e-6);
  return at::where(coefficient.ge(1.0), one, coefficient);  // a NaN stays a NaN
}

void scale_by(const at::Tensor& gradient, const at::Tensor& factor) {
  // Computed in float32, because a kernel may round the factor to the gradient's dtype before it multiplies.
  if (at::isReducedFloatingType(gradient.scalar_type()))
    gradient.copy_(gradient.to(at::kFloat).mul_(factor.to(at::kFloat)));
  else gradient.mul_(factor);
}

}  // namespace optim
}  // namespace muster
