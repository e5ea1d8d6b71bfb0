#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>

#include "sim/machine.h"
#include "sim/memory.h"

namespace muster::sim {
namespace {

std::map<const char*, size_t>& blocks() {  // by their begin, under the machine's lock
  static auto* blocks = new std::map<const char*, size_t>;
  return *blocks;
}

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto lock = Machine::get().lock();
    auto* memory = static_cast<char*>(std::aligned_alloc(64, (bytes / 64 + 1) * 64));
    std::memset(memory, kPoison, bytes);
    blocks()[memory] = std::max<size_t>(bytes, 1);
    return {memory, memory, &PinnedMemory::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  /// Queued copies hold their tensors.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static void release(void* memory) {
    const auto lock = Machine::get().lock();
    blocks().erase(static_cast<const char*>(memory));
    std::free(memory);
  }
};

}  // namespace

at::HostAllocator& host_allocator() {
  static auto* allocator = new PinnedMemory;
  return *allocator;
}

bool is_pinned(const void* pointer) {
  const auto lock = Machine::get().lock();
  const auto next = blocks().upper_bound(static_cast<const char*>(pointer));
  return next != blocks().begin() && pointer < std::prev(next)->first + std::prev(next)->second;
}

}  // namespace muster::sim
