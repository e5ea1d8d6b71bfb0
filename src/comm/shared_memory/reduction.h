#pragma once

#include <cstddef>
#include <vector>

#include <c10/core/ScalarType.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// out[i] = the reduction of terms[0][i], terms[1][i], ... in this order, the bits that reduce_terms() gives: float16
/// and bfloat16 are combined in float32 and rounded once. `copy` gets the same values, unless it is null. `out` and
/// `copy` may each be one of the terms. Requires: a dtype of Communicator's.
void reduce_memory(void* out, void* copy, const std::vector<const void*>& terms, std::size_t elements,
                   at::ScalarType dtype, ReduceOp op);

}  // namespace muster::comm
