#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>

#include "muster/shard/tensor_shard.h"

namespace muster::parallel {

/// The positions of a unit's parameters in its flat memory, and the shard of that memory that each rank holds. Every
/// parameter starts at a multiple of the padding. Rank r holds the r-th of `world` chunks of equal length, a multiple
/// of the padding and of `multiple`. The last chunks may extend beyond the parameters, or lie entirely beyond them.
/// Why: docs/decisions/0020-shards-are-whole-blocks.md.
class ShardLayout {
 public:
  ShardLayout(const std::vector<int64_t>& numels, int world, int64_t multiple = 1);

  int world() const noexcept { return world_; }
  int64_t shard_numel() const noexcept { return shard_numel_; }
  int64_t total() const noexcept { return shard_numel_ * world_; }
  /// The padded range of parameter i in the flat memory.
  shard::Run whole(size_t i) const { return spans_[i]; }
  /// The range of parameter i that rank r holds, relative to r's shard. Length 0: nothing.
  shard::Run part(size_t i, int rank) const;
  /// The parameter at this element of the flat memory. Requires: there is one.
  size_t at(int64_t element) const;

 private:
  int world_;
  int64_t shard_numel_ = 0;
  std::vector<shard::Run> spans_;
};

/// The elements of the tensor, 1-D, in the order in which they lie in memory with the strides of `like`: a view if that
/// is possible.
at::Tensor in_memory_order(const at::Tensor& tensor, const at::Tensor& like);

}  // namespace muster::parallel
