#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// A reduction along the hosts, in their order: a pipelined chain.
/// Why: docs/decisions/0117-sums-along-the-hosts.md.
struct ChainReduction {
  const at::Tensor& source;
  /// Receives the results: all of them (with the shape of the source), those of this rank's piece, or none.
  const at::Tensor& target;
  std::vector<Chunk> chunks;
  ReduceOp op = ReduceOp::sum;
  bool two_level = false;  ///< whether each host first reduces its ranks' values; otherwise in rank order
};

/// The owner of a part reduces the values of its host's ranks, combines them with the sum that the owner on the
/// previous host has sent, and sends the result to the next host; on the last host the reduction is complete. Until
/// then float16 and bfloat16 are sent as float32. `scratch` returns memory of that many bytes. Collective.
void reduce_by_hosts(const HostContext& context, const ChainReduction& sums,
                     const std::function<std::byte*(std::size_t)>& scratch);

}  // namespace muster::comm
