#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include <c10/util/Exception.h>

#include "sim/machine.h"
#include "sim/memory.h"

namespace muster::sim {
namespace {

constexpr size_t kPinnedUnit = 4096;  // bytes of a page, the unit in which accesses fault

/// A command that the host has not waited for.
struct Pending {
  Use use;
  Access access;
};

struct PinnedBlock {
  size_t bytes = 0;                   ///< size in whole pages
  std::vector<Pending> pending = {};  ///< commands; in their pages the host may not read what they write, nor write
};

struct Pinned {
  char* host = nullptr;
  char* kernel = nullptr;
  size_t next MUSTER_GUARDED_BY(Machine::get().mutex()) = 0;
  /// Blocks in use, by their first address.
  std::map<const char*, PinnedBlock> blocks MUSTER_GUARDED_BY(Machine::get().mutex());
  /// Free blocks by size in bytes.
  std::map<size_t, std::vector<char*>> free MUSTER_GUARDED_BY(Machine::get().mutex());
};

Pinned& pinned() {
  static auto& all = *new Pinned;
  return all;
}

std::map<const char*, PinnedBlock>::iterator block_of(const void* pointer) MUSTER_REQUIRES(Machine::get().mutex()) {
  auto& blocks = pinned().blocks;
  if (pointer < pinned().host || pointer >= pinned().host + kBytesOfAddresses) return blocks.end();
  const auto next = blocks.upper_bound(static_cast<const char*>(pointer));
  if (next == blocks.begin()) return blocks.end();
  const auto found = std::prev(next);
  return pointer < found->first + found->second.bytes ? found : blocks.end();
}

const char* page_of(const char* address) { return address - reinterpret_cast<uintptr_t>(address) % kPinnedUnit; }

void protect_pages(const char* begin, const char* end, int protection) {
  const auto* first = page_of(begin);
  ::mprotect(const_cast<char*>(first), static_cast<size_t>(page_of(end - 1) + kPinnedUnit - first), protection);
}

void protect(const char* begin, const PinnedBlock& block) {
  protect_pages(begin, begin + block.bytes, PROT_READ | PROT_WRITE);
  for (const bool writes : {false, true})
    for (const auto& [use, access] : block.pending)
      if (access.writes == writes) protect_pages(access.begin, access.end, writes ? PROT_NONE : PROT_READ);
}

/// Lets the host continue in the page of this address. A command that uses the address is a race. For other commands
/// nobody knows whether the host reaches their bytes; they forbid its accesses only in their other pages from now on.
void open_page(PinnedBlock& block, const char* address, bool writes) MUSTER_REQUIRES(Machine::get().mutex()) {
  const auto *page = page_of(address), *next = page + kPinnedUnit;
  for (auto& [use, access] : std::exchange(block.pending, {})) {
    if (!(writes || access.writes) || access.end <= page || access.begin >= next)
      block.pending.push_back({use, access});
    else if (access.begin <= address && address < access.end)
      Machine::get().order.report_host(use, access.writes, writes);
    else {
      if (access.begin < page) block.pending.push_back({use, {access.begin, page, access.writes}});
      if (access.end > next) block.pending.push_back({use, {next, access.end, access.writes}});
    }
  }
}

char* take(size_t bytes) MUSTER_REQUIRES(Machine::get().mutex()) {
  auto& all = pinned();
  if (auto& free = all.free[bytes]; !free.empty()) {
    auto* begin = free.back();
    free.pop_back();
    return begin;
  }
  TORCH_CHECK_WITH(OutOfMemoryError, all.next + bytes <= kBytesOfAddresses, "out of pinned memory");
  return all.host + std::exchange(all.next, all.next + bytes);
}

class PinnedMemory final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto lock = Machine::get().lock();
    bytes = (bytes / kPinnedUnit + 1) * kPinnedUnit;
    auto* begin = take(bytes);
    std::memset(begin, kPoison, bytes);
    pinned().blocks[begin] = {bytes};
    return {begin, begin, &PinnedMemory::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  /// Nothing to record, because queued copies keep their memory.
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    const auto lock = Machine::get().lock();
    at::HostStats stats;
    stats.allocated_bytes.increase(pinned().next);
    for (const auto& [begin, block] : pinned().blocks) stats.active_bytes.increase(block.bytes);
    return stats;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}

 private:
  static void release(void* memory) {
    const auto lock = Machine::get().lock();
    auto* begin = static_cast<char*>(memory);
    const auto block = pinned().blocks.find(begin);
    const auto bytes = block->second.bytes;
    block->second.pending.clear();
    protect(begin, block->second);
    Machine::get().order.forget(begin, begin + bytes);
    pinned().blocks.erase(block);
    pinned().free[bytes].push_back(begin);
  }
};

}  // namespace

void reserve_pinned_addresses() {
  const int file = ::memfd_create("muster_pinned", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(kBytesOfAddresses)) == 0, "no pinned memory");
  for (auto* begin : {&pinned().host, &pinned().kernel}) {
    void* at = ::mmap(nullptr, kBytesOfAddresses, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(at != MAP_FAILED, "the simulated accelerator finds no addresses for pinned memory");
    *begin = static_cast<char*>(at);
  }
  ::close(file);
}

at::HostAllocator& host_allocator() {
  static auto* allocator = new PinnedMemory;
  return *allocator;
}

bool is_pinned(const void* pointer) {
  const auto lock = Machine::get().lock();
  return block_of(pointer) != pinned().blocks.end();
}

void* pinned_kernel_pointer(const void* pointer) {
  return pinned().kernel + (static_cast<const char*>(pointer) - pinned().host);
}

void protect_pinned(const std::vector<Access>& accesses) {
  Machine::get().mutex().assume_locked();  // by the machine, which calls this
  const auto& use = Machine::get().order.last_use();
  if (!use.origin || Machine::get().order.host_has_waited_for(use)) return;
  std::map<const char*, PinnedBlock*> used;
  for (const auto& access : accesses) {
    const auto found = block_of(access.begin);
    if (found == pinned().blocks.end()) continue;
    found->second.pending.push_back({use, access});
    used[found->first] = &found->second;
  }
  for (const auto& [begin, block] : used) protect(begin, *block);
}

void release_pinned() {
  Machine::get().mutex().assume_locked();  // by the machine, which calls this
  for (auto& [begin, block] : pinned().blocks) {
    const auto over = [](const Pending& pending) MUSTER_REQUIRES(Machine::get().mutex()) {
      return Machine::get().order.host_has_waited_for(pending.use);
    };
    if (std::erase_if(block.pending, over) > 0) protect(begin, block);
  }
}

bool admit_pinned(const void* address, bool writes) {
  if (address < pinned().host || address >= pinned().host + kBytesOfAddresses) return false;
  const auto lock = Machine::get().lock();
  const auto found = block_of(address);
  if (found == pinned().blocks.end()) return false;
  open_page(found->second, static_cast<const char*>(address), writes);
  protect(found->first, found->second);
  return true;
}

}  // namespace muster::sim
