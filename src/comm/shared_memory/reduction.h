#pragma once

#include <cstddef>
#include <span>

#include <c10/core/ScalarType.h>

#include "muster/comm/communicator.h"

namespace muster::comm {

/// Each of `outs`[i] = the reduction of terms[0][i], terms[1][i], ... in this order. The bits are those of
/// reduce_terms(): float16 and bfloat16 are combined in float32 and rounded once. Each of `outs` may be one of the
/// terms. `past_caches`: all but the first of `outs` are written by copy_past_caches().
/// Requires: a dtype that Communicator takes.
void reduce_memory(std::span<void* const> outs, const std::vector<const void*>& terms, std::size_t elements,
                   at::ScalarType dtype, ReduceOp op, bool past_caches = false);

}  // namespace muster::comm
