#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "sim/machine.h"
#include "sim/memory.h"

namespace muster::sim {
namespace {

constexpr size_t kUnit = 512;  // bytes; sizes of blocks are multiples of it

struct Block {
  char* begin = nullptr;
  size_t bytes = 0;
  c10::Stream home;                     ///< stream on which it was allocated
  std::vector<c10::Stream> users = {};  ///< other streams that were recorded
};

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

class DeviceMemory final : public c10::DeviceAllocator {
 public:
  explicit DeviceMemory(const Options& options)
      : limit_(options.bytes_per_device), next_(static_cast<size_t>(options.devices)), stats_(next_.size()) {}

  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override;

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  /// As with CUDA, memory that this allocator does not free itself is silently ignored.
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override;
  DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

 private:
  /// A freed block that recorded streams still use.
  struct Leaving {
    Block* block;
    std::vector<Mark> marks;
  };
  using Place = std::tuple<int, c10::StreamId, size_t>;

  static void release(void* context);
  void give_back(Block* block) MUSTER_REQUIRES(machine_.mutex());
  void make_free(Block* block) MUSTER_REQUIRES(machine_.mutex());
  void take_back() MUSTER_REQUIRES(machine_.mutex());
  Block* reused(c10::Stream stream, size_t bytes) MUSTER_REQUIRES(machine_.mutex());
  Block* fresh(c10::Stream stream, size_t bytes) MUSTER_REQUIRES(machine_.mutex());
  DeviceStats& stats(int device) MUSTER_REQUIRES(machine_.mutex()) { return stats_.at(static_cast<size_t>(device)); }

  Machine& machine_ = Machine::get();
  int64_t limit_;
  std::vector<size_t> next_ MUSTER_GUARDED_BY(machine_.mutex());  ///< first address that was never used, by device
  std::vector<DeviceStats> stats_ MUSTER_GUARDED_BY(machine_.mutex());
  std::map<Place, std::vector<Block*>> free_ MUSTER_GUARDED_BY(machine_.mutex());
  std::vector<Leaving> leaving_ MUSTER_GUARDED_BY(machine_.mutex());
};

DeviceMemory& memory() {
  static auto* memory = new DeviceMemory(Machine::get().options());  // tensors may be freed after main()
  return *memory;
}

c10::DataPtr DeviceMemory::allocate(size_t bytes) {
  const int device = current_device();
  if (bytes == 0) return {nullptr, nullptr, &DeviceMemory::release, sim::device(device)};
  const auto lock = machine_.lock();
  bytes = (bytes + kUnit - 1) / kUnit * kUnit;
  auto& use = stats(device).allocated_bytes[0];
  if (use.current + static_cast<int64_t>(bytes) > limit_) {
    ++stats(device).num_ooms;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory on ", sim::device(device), ": ", bytes,
                     " bytes more than ", use.current, " of ", limit_);
  }
  take_back();
  auto* block = reused(current_stream(device), bytes);
  if (!block) block = fresh(current_stream(device), bytes);
  machine_.order.allocate(machine_.clock_of(block->home), block->begin, block->begin + bytes);
  use.increase(bytes);
  stats(device).allocation[0].increase(1);
  return {block->begin, block, &DeviceMemory::release, sim::device(device)};
}

Block* DeviceMemory::fresh(c10::Stream stream, size_t bytes) {
  const int device = static_cast<unsigned char>(stream.device_index());
  auto& next = next_.at(static_cast<size_t>(device));
  TORCH_CHECK_WITH(OutOfMemoryError, next + bytes <= kBytesOfAddresses, "out of addresses on ", sim::device(device));
  auto* block = new Block{device_address(device) + next, bytes, stream};
  next += bytes + kUnit;  // leaves a gap, so that an overrun finds no valid data
  std::memset(kernel_pointer(block->begin), kPoison, bytes);
  stats(device).reserved_bytes[0].increase(bytes);
  return block;
}

Block* DeviceMemory::reused(c10::Stream stream, size_t bytes) {
  const auto found = free_.find({stream.device_index(), stream.id(), bytes});
  if (found == free_.end() || found->second.empty()) return nullptr;
  auto* block = found->second.back();
  found->second.pop_back();
  ++machine_.stats.reused_blocks;
  return block;
}

void DeviceMemory::release(void* context) {
  if (!context) return;
  auto& all = memory();
  const auto lock = all.machine_.lock();
  all.give_back(static_cast<Block*>(context));
}

void DeviceMemory::give_back(Block* block) {
  auto& of = stats(block->home.device_index());
  of.allocated_bytes[0].decrease(block->bytes);
  of.allocation[0].decrease(1);
  std::vector<size_t> recorded;
  for (const auto& user : block->users) recorded.push_back(machine_.clock_of(user));
  machine_.order.release(machine_.clock_of(block->home), recorded, block->begin, block->begin + block->bytes);
  if (block->users.empty()) return make_free(block);
  Leaving leaving{block, {}};
  for (const auto& user : block->users) leaving.marks.push_back(machine_.record(std::make_shared<Event>(), user));
  block->users.clear();
  leaving_.push_back(std::move(leaving));
}

void DeviceMemory::make_free(Block* block) {
  free_[{block->home.device_index(), block->home.id(), block->bytes}].push_back(block);
  machine_.enqueue(block->home, {"release of memory", [at = kernel_pointer(block->begin), bytes = block->bytes] {
                                   std::memset(at, kPoison, bytes);
                                 }});
}

void DeviceMemory::take_back() {
  for (auto it = leaving_.begin(); it != leaving_.end();) {
    const bool done = std::all_of(it->marks.begin(), it->marks.end(), [](const Mark& mark) { return mark.done(); });
    if (done) make_free(it->block);
    it = done ? leaving_.erase(it) : std::next(it);
  }
}

void DeviceMemory::copy_data(void* to, const void* from, size_t bytes) const {
  const auto* source = static_cast<const char*>(from);
  const auto* target = static_cast<const char*>(to);
  machine_.enqueue(current_stream(device_of_pointer(to)),
                   {"copy of a storage",
                    [to = kernel_pointer(to), from = kernel_pointer(from), bytes] { std::memmove(to, from, bytes); },
                    {},
                    {{source, source + bytes, false}, {target, target + bytes, true}}});
}

void DeviceMemory::recordStream(const c10::DataPtr& pointer, c10::Stream stream) {
  if (!pointer.get() || pointer.get_deleter() != &DeviceMemory::release) return;
  const auto lock = machine_.lock();
  auto& block = *static_cast<Block*>(pointer.get_context());
  if (stream != block.home && std::find(block.users.begin(), block.users.end(), stream) == block.users.end())
    block.users.push_back(stream);
}

DeviceStats DeviceMemory::getDeviceStats(c10::DeviceIndex device) {
  const auto lock = machine_.lock();
  return stats(device);
}

void DeviceMemory::resetAccumulatedStats(c10::DeviceIndex device) {
  const auto lock = machine_.lock();
  stats(device).allocated_bytes[0].reset_accumulated();
  stats(device).reserved_bytes[0].reset_accumulated();
  stats(device).num_ooms = 0;
}

void DeviceMemory::resetPeakStats(c10::DeviceIndex device) {
  const auto lock = machine_.lock();
  stats(device).allocated_bytes[0].reset_peak();
  stats(device).reserved_bytes[0].reset_peak();
}

std::pair<size_t, size_t> DeviceMemory::getMemoryInfo(c10::DeviceIndex device) {
  const auto lock = machine_.lock();
  return {static_cast<size_t>(limit_ - stats(device).allocated_bytes[0].current), static_cast<size_t>(limit_)};
}

}  // namespace

c10::DeviceAllocator& device_allocator() { return memory(); }

}  // namespace muster::sim
