#include "muster/optim/detail/norm.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "muster/base/error.h"
#include "muster/base/format.h"
#include "muster/optim/detail/flat_parameters.h"
#include "optim/exact_sum.h"

namespace muster::optim {
namespace {

static_assert(kFlatPadding % kSumBlock == 0, "gradients are cut where blocks of a sum end");

at::Tensor largest(const std::vector<at::Tensor>& tensors) {
  auto most = at::zeros({}, at::kDouble);
  for (const auto& tensor : tensors)
    if (tensor.defined() && tensor.numel() > 0)
      most = at::maximum(most, at::linalg_vector_norm(tensor, INFINITY).to(at::kCPU, at::kDouble));  // a NaN stays one
  return most;
}

/// The elements in the order in which they lie in memory, in a dtype whose powers float64 can add up.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  auto real = tensor.is_complex() ? tensor.abs() : tensor;
  if (!real.is_non_overlapping_and_dense()) real = real.contiguous();
  const auto flat = real.as_strided({real.numel()}, {1});
  return flat.scalar_type() == at::kDouble ? flat : flat.to(at::kFloat);
}

void add_elements(ExactSum& sum, const at::Tensor& tensor, double p) {
  if (!tensor.device().is_cpu()) {
    const auto wide = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto norm =
        at::linalg_vector_norm(tensor, p, std::nullopt, false, wide).to(at::kCPU, at::kDouble).item<double>();
    return sum.add(p == 2 ? norm * norm : std::pow(norm, p));
  }
  const auto flat = in_memory_order(tensor);
  if (flat.scalar_type() == at::kDouble) add_powers(sum, flat.const_data_ptr<double>(), flat.numel(), p);
  else add_powers(sum, flat.const_data_ptr<float>(), flat.numel(), p);
}

}  // namespace

at::Tensor unrounded_power_sum(const std::vector<at::Tensor>& tensors, double p) {
  if (!(p > 0))
    throw ConfigError("MU144",
                      formatted("gradients are to be clipped by a norm of order {}; give one above 0, or infinity", p));
  at::NoGradGuard no_grad;
  if (std::isinf(p)) return largest(tensors);
  ExactSum sum;
  for (const auto& tensor : tensors)
    if (tensor.defined()) add_elements(sum, tensor, p);
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

}  // namespace muster::optim
