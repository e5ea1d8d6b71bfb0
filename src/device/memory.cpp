#include "device/memory.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/shown.h"
#include "device/device.h"
#include "muster/base/format.h"

namespace muster::device {

std::optional<MemoryUse> memory_use(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator || !allocator->initialized()) return std::nullopt;
  const auto stats = allocator->getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return MemoryUse{.allocated = stats.allocated_bytes[kAll].current,
                   .peak = stats.allocated_bytes[kAll].peak,
                   .reserved = stats.reserved_bytes[kAll].current,
                   .reserved_peak = stats.reserved_bytes[kAll].peak};
}

std::string describe_memory(at::Device device) {
  const auto use = memory_use(device);
  if (!use) return "";
  const auto size = [](int64_t bytes) { return size_text(static_cast<uint64_t>(bytes)); };
  return formatted("{} holds {} in tensors now and held {} at most; {} are reserved, and {} were at most", device.str(),
                   size(use->allocated), size(use->peak), size(use->reserved), size(use->reserved_peak));
}

int64_t pinned_bytes(at::Device device) try {
  return uses_pinned_memory(device) ? at::getHostAllocator(device.type())->get_stats().allocated_bytes.current : 0;
} catch (const c10::Error&) {
  return 0;  // a device that the program registered may have no such allocator
}

at::Device current() {
  const auto kind = at::accelerator::getAccelerator(false);
  if (!kind || count() == 0) return at::kCPU;
  return at::Device(*kind, at::accelerator::getDeviceIndex());
}

}  // namespace muster::device
