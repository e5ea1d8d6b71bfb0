#include "parallel/sharded/buffer_pool.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace muster::parallel {
namespace {

int64_t capacity(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); }

/// By set_(): a view would share the version of the tensor that had the memory before.
at::Tensor typed(const at::Tensor& memory, int64_t numel, const at::TensorOptions& options) {
  return at::empty({0}, options).set_(memory.storage(), 0, {numel}, {1});
}

}  // namespace

at::Tensor BufferPool::allocate(int64_t numel, const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  const auto bytes = std::max<int64_t>(numel * static_cast<int64_t>(options.dtype().itemsize()), 1);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->device() == options.device() && capacity(*it) >= bytes && capacity(*it) <= bytes + bytes / 4 &&
        (best == free_.end() || capacity(*it) < capacity(*best)))
      best = it;
  at::Tensor memory;
  if (best != free_.end()) {
    memory = std::move(*best);
    free_.erase(best);
    kept_ -= capacity(memory);
  } else {
    memory = at::empty({bytes}, options.dtype(at::kByte));
  }
  allocated_ += capacity(memory);
  peak_ = std::max(peak_, allocated_ + kept_);
  return typed(memory, numel, options);
}

void BufferPool::add_shared(at::Tensor memory) {
  shared_bytes_ += capacity(memory);
  shared_.push_back({std::move(memory)});
}

at::Tensor BufferPool::allocate_shared(int64_t numel, const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  const auto bytes = numel * static_cast<int64_t>(options.dtype().itemsize());
  for (auto& [memory, taken] : shared_) {
    if (taken || capacity(memory) < bytes || memory.device() != options.device()) continue;
    taken = true;
    return typed(memory, numel, options);
  }
  return allocate(numel, options);
}

void BufferPool::release(const at::Tensor& buffer) {
  if (!buffer.defined()) return;
  at::NoGradGuard no_grad;
  for (auto& [memory, taken] : shared_)
    if (memory.is_alias_of(buffer)) {
      taken = false;
      return;
    }
  allocated_ -= capacity(buffer);
  kept_ += capacity(buffer);
  free_.push_back(typed(buffer, capacity(buffer), buffer.options().dtype(at::kByte)));
}

void BufferPool::forget(const at::Tensor& buffer) {
  if (buffer.defined()) allocated_ -= capacity(buffer);
}

void BufferPool::trim() {
  free_.clear();
  kept_ = 0;
}

}  // namespace muster::parallel
