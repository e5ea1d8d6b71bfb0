#include "parallel/sharded/buffer_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

namespace muster::parallel {
namespace {

constexpr device::SyncPoint kPoolHome{"buffers: memory is allocated on a stream of its own"};
constexpr device::SyncPoint kPoolAllocated{"buffers: a stream uses memory after its allocation"};
constexpr device::SyncPoint kPoolReused{"buffers: a stream takes memory after those that have used it"};
constexpr device::SyncPoint kPoolFreed{"buffers: memory is freed after the streams that have used it"};

int64_t capacity(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.storage().nbytes()); }

/// Uses set_() because a view would share the version of the tensor that had the memory before.
at::Tensor typed(const at::Tensor& memory, int64_t numel, const at::TensorOptions& options) {
  return at::empty({0}, options).set_(memory.storage(), 0, {numel}, {1});
}

}  // namespace

BufferPool::~BufferPool() {
  try {
    trim();
  } catch (const std::exception&) {  // the device has failed
  }
}

at::Tensor BufferPool::fresh(int64_t bytes, const at::TensorOptions& options) {
  if (!home_) home_ = device::stream_from_pool(options.device());
  const auto current = device::current_stream(options.device());
  const device::StreamScope scope(kPoolHome, home_);
  auto memory = at::empty({bytes}, options.dtype(at::kByte));
  device::wait_stream(kPoolAllocated, current, home_);
  return memory;
}

at::Tensor BufferPool::allocate(int64_t numel, const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  const auto bytes = std::max<int64_t>(numel * static_cast<int64_t>(options.dtype().itemsize()), 1);
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it)
    if (it->memory.device() == options.device() && capacity(it->memory) >= bytes &&
        capacity(it->memory) <= bytes + bytes / 4 &&
        (best == free_.end() || capacity(it->memory) < capacity(best->memory)))
      best = it;
  at::Tensor memory;
  if (best != free_.end()) {
    memory = std::move(best->memory);
    device::stream_wait(kPoolReused, best->uses, options.device());
    free_.erase(best);
    kept_ -= capacity(memory);
  } else {
    memory = fresh(bytes, options);
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

void BufferPool::release_on_current(const at::Tensor& buffer) {
  if (!buffer.defined()) return;
  device::StreamUses uses;
  uses.add(buffer.device());
  release(buffer, uses.record());
}

void BufferPool::release(const at::Tensor& buffer, device::StreamEvents uses) {
  if (!buffer.defined()) return;
  at::NoGradGuard no_grad;
  for (auto& [memory, taken] : shared_)
    if (memory.is_alias_of(buffer)) {
      taken = false;
      return;
    }
  allocated_ -= capacity(buffer);
  kept_ += capacity(buffer);
  free_.push_back({typed(buffer, capacity(buffer), buffer.options().dtype(at::kByte)), std::move(uses)});
}

void BufferPool::forget(const at::Tensor& buffer) {
  if (buffer.defined()) allocated_ -= capacity(buffer);
}

void BufferPool::trim() {
  const device::StreamScope scope(kPoolHome, home_);
  for (const auto& [memory, uses] : free_) device::stream_wait(kPoolFreed, uses, memory.device());
  free_.clear();
  kept_ = 0;
}

}  // namespace muster::parallel
