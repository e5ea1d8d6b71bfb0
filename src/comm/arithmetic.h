#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// target = the reduction of the terms, in their order; all are contiguous, of equal shape and dtype. float16 and
/// bfloat16 are summed in float32 and rounded once. A sum of bools is a logical or, a product a logical and. Sums and
/// products come from LibTorch's kernels, except in reduce_memory(); tests compare its bits with theirs. `own` is the
/// term that may be the target itself; the other terms are scratch memory and are overwritten.
void reduce_terms(const at::Tensor& target, const std::vector<at::Tensor>& terms, int own, ReduceOp op);

/// A 1-D tensor of this many elements of the dtype of `like`, in CPU memory at `data`. Borrows the memory.
at::Tensor elements_at(const void* data, int64_t elements, const at::Tensor& like);

}  // namespace muster::comm
