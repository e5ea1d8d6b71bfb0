#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "optim/exact_sum.h"

namespace muster::optim {

inline constexpr int64_t kSumWords = static_cast<int64_t>(ExactSum::Words().size());

// By LibTorch's operators on the device, whatever its kind, to the bits of the CPU for p = 1 and 2.

/// What add_powers() adds to ExactSum::Words for the elements of all tensors, which are 1-D and on one device: a tensor
/// there. Undefined if there are no elements.
at::Tensor device_words(const std::vector<at::Tensor>& tensors, double p);
/// The same sum with every digit below 2^32, as ExactSum::words(), to be added to those of other ranks.
at::Tensor with_carries(const at::Tensor& words);
/// ExactSum::value() of such words, where they are.
at::Tensor rounded(const at::Tensor& words);
/// As add_powers(). The host waits once, for the words.
void add_device_powers(ExactSum& sum, const std::vector<at::Tensor>& tensors, double p);

/// The elements in the order in which they lie in memory, in a dtype whose powers float64 can add up.
at::Tensor in_memory_order(const at::Tensor& tensor);
/// Throws: ConfigError (MU144) unless p > 0.
void require_order(double p);

}  // namespace muster::optim
