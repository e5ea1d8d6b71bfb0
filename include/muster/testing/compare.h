#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace muster::testing {

/// Empty if the tensors have equal dtype, shape and bits; otherwise a description of the first difference.
/// NaN equals NaN if the bits are equal, and 0.0 differs from -0.0.
std::string difference_in_bits(const at::Tensor& actual, const at::Tensor& expected);

/// Empty if |actual - expected| <= absolute + relative * |expected| everywhere; otherwise a description of the first
/// and the largest difference. NaN equals NaN.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, double relative = 1e-6,
                       double absolute = 1e-6);

}  // namespace muster::testing
