#include "muster/shard/chunk.h"

#include <algorithm>

#include <ATen/ops/cat.h>

namespace muster::shard {

int64_t chunk_size(int64_t length, int world) { return (length + world - 1) / world; }

Chunk chunk_of(int64_t length, int world, int rank) {
  const auto size = chunk_size(length, world);
  const auto begin = std::min(length, size * rank);
  return {begin, std::min(size, length - begin)};
}

std::vector<Chunk> chunks_of(int64_t length, int world) {
  std::vector<Chunk> chunks;
  for (int rank = 0; rank < world; ++rank) chunks.push_back(chunk_of(length, world, rank));
  return chunks;
}

int owner_of(int64_t element, int64_t length, int world) {
  return static_cast<int>(element / chunk_size(length, world));
}

at::Tensor chunk_of(const at::Tensor& tensor, int64_t dim, int world, int rank) {
  const auto chunk = chunk_of(tensor.size(dim), world, rank);
  return tensor.narrow(dim, chunk.begin, chunk.length);
}

at::Tensor join_chunks(const std::vector<at::Tensor>& pieces, int64_t dim) { return at::cat(pieces, dim); }

}  // namespace muster::shard
