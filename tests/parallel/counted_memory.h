#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace muster::parallel {

/// Counts the bytes of all CPU tensors that the calling thread makes while this lives, until they are freed.
class CountedMemory {
 public:
  CountedMemory() {
    static auto* const allocator = new Allocator(c10::GetAllocator(c10::kCPU));   // storages keep a pointer to it
    c10::SetAllocator(c10::kCPU, allocator);
    current() = bytes_;
  }
  ~CountedMemory() { current().reset(); }
  CountedMemory(const CountedMemory&) = delete;
  CountedMemory& operator=(const CountedMemory&) = delete;

  int64_t live() const { return bytes_->live; }
  int64_t peak() const { return bytes_->peak; }
  void forget_peak() { bytes_->peak = bytes_->live.load(); }

 private:
  struct Bytes {
    std::atomic<int64_t> live = 0, peak = 0;
  };
  struct Block {
    c10::DataPtr memory;
    int64_t size;
    std::shared_ptr<Bytes> bytes;
    ~Block() {
      if (bytes) bytes->live -= size;
    }
  };
  struct Allocator final : c10::Allocator {
    explicit Allocator(c10::Allocator* base) : base(base) {}
    c10::DataPtr allocate(size_t size) override {
      auto* block = new Block{base->allocate(size), static_cast<int64_t>(size), current()};
      if (block->bytes) {
        const auto live = block->bytes->live += block->size;
        block->bytes->peak = std::max<int64_t>(block->bytes->peak, live);
      }
      return {block->memory.get(), block, [](void* made) { delete static_cast<Block*>(made); }, block->memory.device()};
    }
    void copy_data(void* to, const void* from, size_t count) const override { base->copy_data(to, from, count); }
    c10::Allocator* base;
  };
  static std::shared_ptr<Bytes>& current() {
    thread_local std::shared_ptr<Bytes> bytes;
    return bytes;
  }

  std::shared_ptr<Bytes> bytes_ = std::make_shared<Bytes>();
};

}  // namespace muster::parallel
