#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace muster::parallel {

/// A pool of flat memory, so that one unit's memory is reused by the next unit: new memory is slow, since the system
/// provides it page by page. Thread safety: the caller's.
class BufferPool {
 public:
  /// 1-D, values undefined. `options`: dtype and device.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options);
  /// Returns memory to the pool. Requires: from allocate(), and no longer used. An undefined tensor is ignored.
  void release(at::Tensor buffer);
  /// For a buffer that will not be returned.
  void forget(const at::Tensor& buffer);
  /// Frees memory that is not taken.
  void trim();
  /// Bytes taken and kept in the pool.
  int64_t bytes() const noexcept { return allocated_ + kept_; }
  int64_t peak_bytes() const noexcept { return peak_; }

 private:
  std::vector<at::Tensor> free_;  // of bytes
  int64_t allocated_ = 0, kept_ = 0, peak_ = 0;
};

}  // namespace muster::parallel
