#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster::optim {

/// The sum of |x|^p over all elements of these tensors; the largest |x| for p = infinity, the smallest for -infinity, the
/// number of elements that are not zero for p = 0. Undefined tensors count as empty.
/// A 0-d tensor on the tensors' device, float64 (float32 on devices without float64); 0 for no elements.
/// Sums of parts (maxima for infinity) may be added up before norm_from_power_sum().
at::Tensor power_sum(const std::vector<at::Tensor>& tensors, double p);

/// The p-norm that belongs to a power_sum().
double norm_from_power_sum(double sum, double p);

/// What gradients of this norm are multiplied by so that it is at most max_norm: never above 1.
/// The same arithmetic as torch::nn::utils::clip_grad_norm_: max_norm / (norm + 1e-6).
double clip_coefficient(double norm, double max_norm);

}  // namespace muster::optim
