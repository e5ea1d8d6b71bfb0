#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace muster::optim {

inline constexpr int64_t kSumWords = static_cast<int64_t>(ExactSum::Words().size());

// ExactSum by LibTorch's operators, for any kind of device. For p = 1 and 2 the bits are those of the CPU.

/// The words that add_powers() would add to an ExactSum for the elements of all tensors, which are 1-D and on one
/// device; the result is on that device. Undefined if there are no elements.
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

}  // namespace muster::optim
