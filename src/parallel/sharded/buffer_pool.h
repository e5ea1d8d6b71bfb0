#pragma once

#include <ATen/core/Tensor.h>

#include "device/order.h"

namespace muster::parallel {

/// A pool of flat memory, so that the next unit reuses one unit's memory: new memory is slow, since the system provides
/// it page by page. On a device no memory is recorded for a stream. Instead, whoever takes memory waits, on its stream,
/// for the streams that have used it, so that which memory is taken never depends on when work runs. Thread safety: the
/// caller's.
class BufferPool {
 public:
  BufferPool() = default;
  BufferPool(const BufferPool&) = delete;
  ~BufferPool();
  /// A 1-D tensor with undefined values for the current stream; other streams have to wait for it. `options`: dtype and
  /// device.
  at::Tensor allocate(int64_t numel, const at::TensorOptions& options);
  /// Adds memory that ranks share, as a 1-D tensor of bytes, for allocate_shared(). The pool keeps it.
  void add_shared(at::Tensor memory);
  /// Takes the first shared memory that is free and large enough; otherwise calls allocate().
  at::Tensor allocate_shared(int64_t numel, const at::TensorOptions& options);
  /// Returns memory to the pool. Requires: it is from allocate(), and only work that `uses` wait for still uses it. An
  /// undefined tensor is ignored.
  void release(const at::Tensor& buffer, device::StreamEvents uses = {});
  /// Calls release() for memory that only the current stream still uses.
  void release_on_current(const at::Tensor& buffer);
  /// Removes a buffer that will not be returned from the count.
  void forget(const at::Tensor& buffer);
  /// Frees memory that is not taken, except shared memory.
  void trim();
  int64_t shared_bytes() const noexcept { return shared_bytes_; }
  /// Bytes taken and kept in the pool, without shared memory.
  int64_t bytes() const noexcept { return allocated_ + kept_; }
  int64_t peak_bytes() const noexcept { return peak_; }

 private:
  struct Free {
    at::Tensor memory;  // a tensor of bytes
    device::StreamEvents uses;
  };
  struct Shared {
    at::Tensor memory;
    bool taken = false;
  };
  at::Tensor fresh(int64_t bytes, const at::TensorOptions& options);

  std::vector<Free> free_;
  device::Stream home_;         // the stream on which memory is allocated and freed; it runs nothing
  std::vector<Shared> shared_;  // in one order on all ranks
  int64_t allocated_ = 0, kept_ = 0, peak_ = 0, shared_bytes_ = 0;
};

}  // namespace muster::parallel
