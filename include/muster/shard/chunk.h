#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

/// How a length is split over ranks, as torch.chunk and FSDP split rows: rank r of W gets the r-th piece of ceil(length
/// / W), so the last ones may be shorter or empty.
namespace muster::shard {

/// A contiguous range.
struct Chunk {
  int64_t begin = 0;  ///< at most the whole length
  int64_t length = 0;
  friend bool operator==(const Chunk&, const Chunk&) = default;
};

/// The length of every piece except the last ones. Requires: length >= 0, world > 0.
int64_t chunk_size(int64_t length, int world);
/// Requires: 0 <= rank < world.
Chunk chunk_of(int64_t length, int world, int rank);
/// The pieces of all ranks, in rank order.
std::vector<Chunk> chunks_of(int64_t length, int world);
/// The rank that holds this element. Requires: 0 <= element < length.
int owner_of(int64_t element, int64_t length, int world);

/// This rank's piece of the tensor along the dim, as a view; no rows for an empty shard.
/// Requires: the tensor has that dim.
at::Tensor chunk_of(const at::Tensor& tensor, int64_t dim, int world, int rank);
/// The inverse: concatenates the pieces of all ranks, in rank order.
at::Tensor join_chunks(const std::vector<at::Tensor>& pieces, int64_t dim);

}  // namespace muster::shard
