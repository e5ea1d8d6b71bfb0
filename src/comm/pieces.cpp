#include "comm/pieces.h"

namespace muster::comm {

int64_t aligned_piece(int64_t elements, int count) {
  const int64_t even = (elements + count - 1) / count;
  return std::max<int64_t>((even + kPieceAlign - 1) / kPieceAlign * kPieceAlign, 1);
}

Range aligned_piece_of(int rank, int64_t elements, int count) {
  return Pieces{.elements = elements, .piece = aligned_piece(elements, count), .chunk = elements}.of_rank(rank);
}

Pieces aligned_pieces(const at::Tensor& tensor, int count) {
  return {tensor.numel(), aligned_piece(tensor.numel(), count),
          kChunkBytes / static_cast<int64_t>(tensor.element_size())};
}

std::byte* at_element(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())) + element * tensor.element_size();
}

}  // namespace muster::comm
