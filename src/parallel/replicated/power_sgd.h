#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace muster::parallel {

/// Orthonormalizes the columns in place, by Gram-Schmidt. A column that depends linearly on earlier ones becomes zero.
/// Returns which columns are zero.
at::Tensor orthonormalize(const at::Tensor& matrix);

/// Draws the initial factor of a factorization, equal on every rank.
at::Tensor first_factor(int64_t rows, int64_t columns, uint64_t seed, const at::TensorOptions& options);
inline uint64_t factor_seed(uint64_t seed, int64_t iteration, size_t bucket, size_t matrix) {
  return ((seed * 1'000'003 + static_cast<uint64_t>(iteration)) * 10'007 + bucket) * 100'003 + matrix;
}

}  // namespace muster::parallel
