#pragma once  // for other rooms

#include <ATen/core/Tensor.h>

#include "muster/optim/clip.h"
#include "optim/exact_sum.h"

namespace muster::optim {

inline constexpr int64_t kSumWords = static_cast<int64_t>(ExactSum::Words().size());

// ExactSum by LibTorch's operators, for any kind of device. For p = 1 and 2 the bits are those of the CPU.

/// The words that add_powers() would add to an ExactSum for the elements of all tensors, which are on one device; the
/// result is on that device. Undefined if there are no elements.
at::Tensor device_words(const std::vector<at::Tensor>& tensors, double p);
/// The same sum with every digit below 2^32, like ExactSum::words(), so that it can be added to the words of other
/// ranks.
at::Tensor with_carries(const at::Tensor& words);
/// ExactSum::value() of such words, computed on their device.
at::Tensor rounded(const at::Tensor& words);
/// add_powers() for tensors on a device. The host waits once, for the words.
void add_device_powers(ExactSum& sum, const std::vector<at::Tensor>& tensors, double p);

/// The elements in the order in which they lie in memory, converted to a dtype whose powers float64 can add up.
at::Tensor in_memory_order(const at::Tensor& tensor);
/// Throws: ConfigError (MU144) unless p > 0.
void require_order(double p);

// Norms of gradients on a device, without making the host wait: each result is a float64 tensor on that device.

/// The device of all these tensors; nullopt if it is the CPU, if they are on several devices, or if there are none.
std::optional<at::Device> single_device_of(const std::vector<at::Tensor>& tensors);

/// The power_sum() of tensors on this device. For p = 1, 2 and infinity the bits are those of power_sum() if a cumsum()
/// along rows adds them one after another, as on the CPU and under CUDA.
/// Throws: ConfigError (MU144) unless p > 0.
at::Tensor device_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p);

/// The power sum before rounding, to be combined over ranks: by a sum, or for p = infinity by the maximum.
at::Tensor device_unrounded_power_sum(const std::vector<at::Tensor>& tensors, at::Device device, double p);
at::Tensor device_rounded_power_sum(const at::Tensor& unrounded, double p);
/// The power sum of the elements of both.
at::Tensor added_power_sums(const at::Tensor& a, const at::Tensor& b, double p);

/// The functions of norm.h, for tensors on a device.
at::Tensor norm_from_power_sum(const at::Tensor& sum, double p);
at::Tensor clip_coefficient(const at::Tensor& norm, double max_norm);

/// Multiplies the gradient in place. The bits are those of a product with the factor as a number.
void scale_by(const at::Tensor& gradient, const at::Tensor& factor);

}  // namespace muster::optim
