#pragma once

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"

namespace muster::comm {

/// Fills `out` with `in` of each rank, which may be this rank's place in `out`. What a rank gives is sent once to each
/// other host. Collective.
void all_gather_by_hosts(const HostContext& context, const at::Tensor& in, const at::Tensor& out);

}  // namespace muster::comm
