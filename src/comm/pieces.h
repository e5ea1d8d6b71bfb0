#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace muster::comm {

/// The size of one message in bytes. Larger pieces are sent in several messages.
inline constexpr int64_t kChunkBytes = 1 << 20;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// How elements are divided into one piece per rank, and pieces into chunks.
struct Pieces {
  int64_t elements;
  int64_t piece;
  int64_t chunk;

  Range of_rank(int64_t rank) const {
    return {std::min(rank * piece, elements), std::min((rank + 1) * piece, elements)};
  }
  int64_t chunks(int64_t rank) const { return (of_rank(rank).size() + chunk - 1) / chunk; }
  Range of_chunk(int64_t rank, int64_t index) const {
    Range piece_range = of_rank(rank);
    int64_t begin = piece_range.begin + index * chunk;
    return {begin, std::min(begin + chunk, piece_range.end)};
  }
};

/// Pieces start at multiples of this many elements.
inline constexpr int64_t kPieceAlign = 64;
/// The size of each of `count` pieces, in elements. The last ones may be smaller, or empty.
inline int64_t aligned_piece(int64_t elements, int count) {
  const int64_t even = (elements + count - 1) / count;
  return std::max<int64_t>((even + kPieceAlign - 1) / kPieceAlign * kPieceAlign, 1);
}
/// The elements of a rank's piece.
inline Range aligned_piece_of(int rank, int64_t elements, int count) {
  return Pieces{.elements = elements, .piece = aligned_piece(elements, count), .chunk = elements}.of_rank(rank);
}
inline Pieces aligned_pieces(const at::Tensor& tensor, int count) {
  return {tensor.numel(), aligned_piece(tensor.numel(), count),
          kChunkBytes / static_cast<int64_t>(tensor.element_size())};
}

inline std::byte* at_element(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())) + element * tensor.element_size();
}

}  // namespace muster::comm
