#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::optim {

/// The sum of |x|^p over all elements of these tensors; the largest |x| for p = infinity. Undefined tensors count as
/// empty; 0 for no elements.
///
/// The sum does not depend on how elements are divided into tensors. Blocks of kFlatPadding elements, counted from the
/// start of a tensor's memory, are each summed in float64 in a fixed order, and the block sums are added without
/// rounding. The sum is therefore bit-identical whether tensors are whole or sharded at block boundaries, and for p = 1
/// and 2 on every device with float64; so is the norm, where the device rounds square roots correctly, as CUDA does. On
/// the simulated accelerator the root is LibTorch's on a CPU, MKL's, which misses the last bit of 0.7% of numbers. For
/// each device of the tensors, the host waits once.
/// Throws: ConfigError (MU144) unless p > 0.
double power_sum(const std::vector<at::Tensor>& tensors, double p);

/// A power_sum() that is not rounded, on the CPU, to be combined over ranks: by a sum, or for p = infinity by the
/// maximum.
at::Tensor unrounded_power_sum(const std::vector<at::Tensor>& tensors, double p);
double rounded_power_sum(const at::Tensor& unrounded, double p);

/// The p-norm of a power_sum().
double norm_from_power_sum(double sum, double p);

/// The factor that scales gradients of this norm so that it is at most max_norm: never above 1.
/// The same arithmetic as torch::nn::utils::clip_grad_norm_: max_norm / (norm + 1e-6).
double clip_coefficient(double norm, double max_norm);

/// A 0-dim float64 tensor on the CPU that takes no part in the choice of a dtype, as a number of Python.
at::Tensor wrapped_number(double value);

/// Multiplies a tensor in place by a number, with one rounding. LibTorch's mul_(Scalar) rounds the number to the dtype
/// of halves before it multiplies, by up to 0.4%; Python's does not.
void scale_by(const at::Tensor& tensor, double factor);

}  // namespace muster::optim
