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
/// and 2 on every device with float64. So is the norm, if the device rounds square roots correctly, as CUDA does. On
/// the simulated accelerator the root is MKL's (LibTorch on a CPU), whose last bit is wrong for 0.7% of numbers. The
/// host waits once for each device of the tensors. See docs/decisions/0071-norms-are-summed-without-rounding.md.
/// Throws: ConfigError (MU144) unless p > 0.
double power_sum(const std::vector<at::Tensor>& tensors, double p);

/// An unrounded power_sum(), on the CPU, for combining over ranks: by a sum, or for p = infinity by the maximum.
at::Tensor unrounded_power_sum(const std::vector<at::Tensor>& tensors, double p);
double rounded_power_sum(const at::Tensor& unrounded, double p);

/// The p-norm of a power_sum().
double norm_from_power_sum(double sum, double p);

/// The factor, at most 1, that scales gradients of this norm to at most max_norm, computed as in
/// torch::nn::utils::clip_grad_norm_: max_norm / (norm + 1e-6).
double clip_coefficient(double norm, double max_norm);

/// A 0-dim float64 tensor on the CPU that does not affect dtype promotion, like a Python number.
at::Tensor wrapped_number(double value);

/// Multiplies a tensor in place by a number, with one rounding. For half-precision tensors, LibTorch's mul_(Scalar)
/// first rounds the number to their dtype, by up to 0.4%; Python's does not.
void scale_by(const at::Tensor& tensor, double factor);

}  // namespace muster::optim
