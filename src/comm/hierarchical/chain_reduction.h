#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/hierarchical/host_chunks.h"
#include "muster/comm/communicator.h"

namespace muster::comm {

/// A reduction along the hosts, in their order: a pipelined chain.
struct ChainReduction {
  const at::Tensor& source;
  /// Gets the results: all of them (as the source), or those of this rank's piece, or none.
  const at::Tensor& target;
  std::vector<Chunk> chunks;
  ReduceOp op = ReduceOp::sum;
  bool two_level = false;  ///< each host reduces its ranks' values first; otherwise all are reduced in rank order
};

/// The owner of a part reduces what its host's ranks give, adds it to what the owner on the host before has sent it,
/// and sends that on; on the last host it has the result. float16 and bfloat16 travel in float32 until then.
/// `scratch` gives memory for that many bytes. Collective.
void reduce_by_hosts(const HostContext& context, const ChainReduction& sums,
                     const std::function<std::byte*(std::size_t)>& scratch);

}  // namespace muster::comm
