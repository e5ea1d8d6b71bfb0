#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster {

/// One rank's shard of a tensor: a run of its elements, counted in row-major order of `shape`. See
/// docs/decisions/0077-one-type-for-a-ranks-part.md.
struct TensorShard {
  std::string name;                      ///< name of the full tensor; equal on all ranks that hold a part of it
  std::vector<std::int64_t> shape;       ///< sizes of the full tensor, with its dims in `order`
  std::int64_t begin = 0;                ///< the first element of the run
  at::Tensor local;                      ///< the elements [begin, begin + local.numel()), in any shape
  std::vector<std::int64_t> order = {};  ///< dims of the tensor, from the outermost in memory; empty: 0, 1, 2, ...
  int replica = 0;                       ///< number of lower ranks that hold the same elements
  at::Tensor parameter = {};             ///< the parameter that it is a part of; undefined for other tensors
  std::int64_t padded = 0;  ///< number of elements in an optimizer's state for it, if it is a part of a parameter
};

namespace shard {

/// A contiguous range of elements.
struct Run {
  std::int64_t begin = 0, length = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

/// Dims from the outermost in memory to the innermost.
std::vector<std::int64_t> memory_order(const at::Tensor& tensor);
/// The sizes, permuted to this order of dims.
std::vector<std::int64_t> permuted(at::IntArrayRef sizes, const std::vector<std::int64_t>& order);
/// The inverse permutation of `order`.
std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& order);
/// The elements of the shard, 1-D, taken from a full tensor of the unpermuted shape.
at::Tensor select(const at::Tensor& whole, const TensorShard& shard);

}  // namespace shard
}  // namespace muster
