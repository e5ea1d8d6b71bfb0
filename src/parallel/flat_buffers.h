#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace muster::parallel {

/// Flat memory that is lent and comes back, so that one unit's is the next one's: fresh memory is dear, since the system
/// hands it out page by page. Thread safety: the caller's.
class FlatBuffers {
 public:
  /// 1-D, values undefined. `options`: dtype and device.
  at::Tensor take(int64_t numel, const at::TensorOptions& options);
  /// Requires: from take(), and nobody uses it any more. An undefined tensor is none.
  void give(at::Tensor buffer);
  /// Of a buffer that will not come back.
  void lose(const at::Tensor& buffer);
  /// Gives back to the system what is not lent.
  void trim();
  /// Lent and kept.
  int64_t bytes() const noexcept { return lent_ + kept_; }
  int64_t peak_bytes() const noexcept { return peak_; }

 private:
  std::vector<at::Tensor> free_;   // of bytes
  int64_t lent_ = 0, kept_ = 0, peak_ = 0;
};

}  // namespace muster::parallel
