#pragma once

#include <cstdint>
#include <vector>

namespace muster::graph {

/// What one block costs in a step.
struct BlockCost {
  int64_t kept_bytes = 0;      ///< that its activations take after the forward, if they are kept
  int64_t returned_bytes = 0;  ///< of these, what a replay makes again
  int64_t flops = 0;           ///< of a replay
  double seconds = 0;          ///< of a replay
};

/// Which blocks to make again so that the others' activations take `budget` bytes at most, at the least time. All of
/// them if even that is not enough.
std::vector<bool> cheapest_blocks(const std::vector<BlockCost>& costs, int64_t budget);

}  // namespace muster::graph
