#pragma once

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"

namespace muster::comm {

/// Fills `out` with `in` of each rank; `in` may be this rank's part of `out`. Each rank's values are sent once to each
/// other host. Collective.
void all_gather_by_hosts(const HostContext& context, const at::Tensor& in, const at::Tensor& out);

}  // namespace muster::comm
