#include "muster/optim/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

namespace muster::optim {
namespace {

at::ScalarType sum_type(at::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

bool is_extreme(double p) { return std::isinf(p); }

/// |x|^p of one tensor. Elements are read in their own dtype; half precision is summed in float32, the rest as it is.
at::Tensor one_power_sum(const at::Tensor& tensor, double p) {
  const auto wide = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto norm = at::linalg_vector_norm(tensor, p, std::nullopt, false, wide).to(sum_type(tensor.device()));
  if (is_extreme(p) || p == 0.0) return norm;
  return p == 2.0 ? norm * norm : norm.pow(p);
}

}  // namespace

at::Tensor power_sum(const std::vector<at::Tensor>& tensors, double p) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  at::Device device = at::kCPU;
  for (const auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    if (parts.empty()) device = tensor.device();
    if (tensor.numel() > 0) parts.push_back(one_power_sum(tensor, p).to(device));
  }
  if (parts.empty()) return at::zeros({}, at::TensorOptions().dtype(sum_type(device)).device(device));
  const auto all = at::stack(parts);
  if (!is_extreme(p)) return all.sum();
  return p > 0 ? all.max() : all.min();
}

double norm_from_power_sum(double sum, double p) {
  if (is_extreme(p) || p == 0.0) return sum;
  return p == 2.0 ? std::sqrt(sum) : std::pow(sum, 1.0 / p);
}

double clip_coefficient(double norm, double max_norm) {
  const double coefficient = max_norm / (norm + 1e-6);
  return coefficient < 1.0 || std::isnan(coefficient) ? coefficient : 1.0;
}

}  // namespace muster::optim
