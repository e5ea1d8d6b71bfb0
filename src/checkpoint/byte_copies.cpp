#include "checkpoint/byte_copies.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

namespace muster::checkpoint {

void copy_bytes(const std::vector<ByteCopy>& copies) {
  constexpr std::size_t kBytesPerPiece = std::size_t{8} << 20;  // bytes that one thread copies at a time
  std::vector<ByteCopy> pieces;
  for (const ByteCopy& copy : copies)
    for (std::size_t done = 0; done < copy.bytes; done += kBytesPerPiece)
      pieces.push_back({copy.to + done, copy.from + done, std::min(kBytesPerPiece, copy.bytes - done)});
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ByteCopy& piece = pieces[static_cast<std::size_t>(i)];
      std::memcpy(piece.to, piece.from, piece.bytes);
    }
  });
}

bool is_plain(const at::Tensor& tensor) {
  // LibTorch determines the keys of an ordinary tensor; a hard-coded list would miss a key that it adds. A difference
  // of key sets keeps the backend's bit, so raw bits are compared.
  static const uint64_t ordinary = [] {
    const c10::InferenceMode off(false);
    return at::empty({0}, at::kCPU).key_set().raw_repr();
  }();
  return (tensor.key_set().raw_repr() & ~ordinary) == 0 && tensor.device().is_cpu() &&
         tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace muster::checkpoint
