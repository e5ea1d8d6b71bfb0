#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/Allocator.h>

namespace muster::parallel {

/// Counts the bytes of all CPU tensors that the calling thread makes while this lives, until they are freed.
class CountedMemory {
 public:
  CountedMemory() {
    static auto* const allocator = new Allocator(base_allocator());  // storages keep a pointer to it
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
    Block(c10::DataPtr memory, int64_t size, std::shared_ptr<Bytes> bytes)
        : memory(std::move(memory)), size(size), bytes(std::move(bytes)) {}
    Block(const Block&) = delete;
    ~Block() {
      if (bytes) bytes->live -= size;
    }
  };
  /// By address: convolutions take memory by raw_allocate(), which wants it to be its own context.
  struct Blocks {
    std::mutex mutex;
    std::unordered_map<void*, std::unique_ptr<Block>> by_address;
  };
  static Blocks& blocks() {
    static auto* const all = new Blocks;
    return *all;
  }
  static void release(void* address) {
    std::unique_ptr<Block> last;
    {
      std::scoped_lock lock(blocks().mutex);
      const auto found = blocks().by_address.find(address);
      if (found != blocks().by_address.end()) {
        last = std::move(found->second);
        blocks().by_address.erase(found);
        return;
      }
    }
    if (address) base_allocator()->raw_deallocate(address);  // from before this allocator was there
  }
  static c10::Allocator* base_allocator() {
    static auto* const base = c10::GetAllocator(c10::kCPU);
    return base;
  }
  struct Allocator final : c10::Allocator {
    explicit Allocator(c10::Allocator* base) : base(base) {}
    c10::DataPtr allocate(size_t size) override {
      auto memory = base->allocate(size);
      void* const address = memory.get();
      if (!address) return memory;
      const auto device = memory.device();
      auto block = std::make_unique<Block>(std::move(memory), static_cast<int64_t>(size), current());
      if (block->bytes) {
        const auto live = block->bytes->live += block->size;
        block->bytes->peak = std::max<int64_t>(block->bytes->peak, live);
      }
      std::scoped_lock lock(blocks().mutex);
      blocks().by_address[address] = std::move(block);
      return {address, address, &release, device};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
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
