#pragma once

#include <ATen/core/Tensor.h>

namespace muster::checkpoint {

/// Converts pairs of 4-bit elements, for which LibTorch has few operators, to bytes; other tensors are returned
/// unchanged.
at::Tensor as_bytes_if_packed(const at::Tensor& tensor);

/// The tensor's values, contiguous in CPU memory; the tensor itself if it already is. Pairs of 4-bit elements become
/// bytes.
at::Tensor dense(const at::Tensor& tensor);

}  // namespace muster::checkpoint
