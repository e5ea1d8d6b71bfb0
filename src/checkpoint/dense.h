#pragma once

#include <ATen/core/Tensor.h>

namespace muster::checkpoint {

/// The tensor's values, contiguous in CPU memory: the tensor itself if it already is. Pairs of 4-bit elements become
/// bytes.
at::Tensor dense(const at::Tensor& tensor);

}  // namespace muster::checkpoint
