#include "comm/pieces.h"

namespace muster::comm {

Pieces aligned_pieces(const at::Tensor& tensor, int count) {
  constexpr int64_t kAlign = 64;
  const int64_t even = (tensor.numel() + count - 1) / count;
  const int64_t piece = (even + kAlign - 1) / kAlign * kAlign;
  return {tensor.numel(), std::max<int64_t>(piece, 1), kChunkBytes / static_cast<int64_t>(tensor.element_size())};
}

std::byte* at_element(const at::Tensor& tensor, int64_t element) {
  return static_cast<std::byte*>(const_cast<void*>(tensor.const_data_ptr())) + element * tensor.element_size();
}

}  // namespace muster::comm
