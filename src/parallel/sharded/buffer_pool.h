#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "device/order.h"

namespace muster::parallel {

/// A pool of flat memory, so that one unit's memory is reused by the next unit: new memory is slow, since the system
/// provides it page by page. On a device no memory is recorded for a stream: whoever takes some waits, on its stream,
/// for the streams that have used it, so what is taken at a time does not depend on when work runs. Thread safety: the
/// caller's.
class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  ~BufferPool();
  /// 1-D, values undefined, for the current stream: other streams have to wait for it. `options`: dtype and device.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options);
  /// Adds memory that ranks share, 1-D of bytes, for allocate_shared(). The pool holds it for good.
  void add_shared(at::Tensor memory);
  /// The first of the shared memory that is free and large enough; otherwise as allocate().
  at::Tensor allocate_shared(int64_t numel, const at::TensorOptions& options);
  /// Returns memory to the pool. Requires: from allocate(), and no longer used but by what `uses` wait for. An
  /// undefined tensor is ignored.
  void release(const at::Tensor& buffer, device::StreamEvents uses = {});
  /// The same of memory that only the current stream still uses.
  void release_on_current(const at::Tensor& buffer);
  /// For a buffer that will not be returned.
  void forget(const at::Tensor& buffer);
  /// Frees memory that is not taken, but for the shared.
  void trim();
  int64_t shared_bytes() const noexcept { return shared_bytes_; }
  /// Bytes taken and kept in the pool, without the shared.
  int64_t bytes() const noexcept { return allocated_ + kept_; }
  int64_t peak_bytes() const noexcept { return peak_; }

 private:
  struct Free {
    at::Tensor memory;  // of bytes
    device::StreamEvents uses;
  };
  struct Shared {
    at::Tensor memory;
    bool taken = false;
  };
  at::Tensor fresh(int64_t bytes, const at::TensorOptions& options);

  std::vector<Free> free_;
  device::Stream home_;         // that memory is allocated on, and freed on, and that runs nothing
  std::vector<Shared> shared_;  // in one order on all ranks
  int64_t allocated_ = 0, kept_ = 0, peak_ = 0, shared_bytes_ = 0;
};

}  // namespace muster::parallel
