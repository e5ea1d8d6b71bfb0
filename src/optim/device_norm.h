#pragma once  // for other rooms

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/optim/grad_norm.h"

/// Norms of gradients on a device, for which nothing waits: each number is a tensor of float64 there.
namespace muster::optim {

/// The device on which all of these are; nullopt if that is the CPU, if they are on several, or if there are none.
std::optional<at::Device> single_device_of(const std::vector<at::Tensor>& tensors);

/// As power_sum(), of tensors on this device. The bits are those of power_sum() for p = 1, 2 and infinity, where a
/// cumsum() along rows adds them one after another, as on the CPU and under CUDA.
/// Throws: ConfigError (MU144) unless p > 0.
at::Tensor device_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p);

/// A device_power_sum() that is not rounded, to be combined over ranks: by a sum, or for p = infinity by the maximum.
at::Tensor device_unrounded_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p);
at::Tensor device_rounded_power_sum(const at::Tensor& unrounded, double p);
/// The power sum of both.
at::Tensor added_power_sums(const at::Tensor& a, const at::Tensor& b, double p);

/// As the functions of norm.h.
at::Tensor norm_from_power_sum(const at::Tensor& sum, double p);
at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm);

/// Multiplies the gradient in place, with the bits of a product with the number.
void scale_by(const at::Tensor& gradient, const at::Tensor& factor);

}  // namespace muster::optim
