#pragma once

#include <ATen/core/Tensor.h>

namespace muster::checkpoint {

/// The tensor's values in one run of CPU memory: the tensor itself where it is that already. Pairs of 4-bit elements come as bytes.
at::Tensor dense(const at::Tensor& tensor);

}  // namespace muster::checkpoint
