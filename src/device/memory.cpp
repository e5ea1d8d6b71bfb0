#include "device/memory.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <sys/resource.h>

#include <fstream>

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "base/text.h"
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

namespace {

[[maybe_unused]] const char* tuning_variable(const Environment& variables) {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"})
    if (variables.has(name)) return name;
  return variables.find("GLIBC_TUNABLES").value_or("").find("glibc.malloc") != std::string::npos ? "GLIBC_TUNABLES"
                                                                                                 : nullptr;
}

KeepMemory requested_by(const Environment& variables) {
  const auto text = variables.find("MUSTER_KEEP_MEMORY").value_or("auto");
  const auto on = read_bool(text);
  return KeepMemory::parse(!on ? text : *on ? "on" : "off");
}

std::string limit_of_process() {
  for (const auto& [kind, name] : {std::pair{RLIMIT_DATA, "RLIMIT_DATA"}, std::pair{RLIMIT_AS, "RLIMIT_AS"}}) {
    rlimit limit{};
    if (::getrlimit(kind, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      return formatted("{} is {}", name, size_text(limit.rlim_cur));
  }
  return {};
}

std::optional<double> number_in(const std::string& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;  // "max" is not a number
}

/// If half of a container's memory is in use before training starts, there is no room for memory that would only be
/// kept.
std::string limit_of_container() {
  const auto limit = number_in("/sys/fs/cgroup/memory.max"), used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used || *used * 2 < *limit) return {};
  return formatted("the container's limit of {} is near", size_text(static_cast<uint64_t>(*limit)));
}

}  // namespace

KeptMemory choose_kept_memory(KeepMemory in_code, [[maybe_unused]] bool launched, const Environment& variables) {
  const auto asked = in_code != "auto" ? in_code : requested_by(variables);
#if defined(__GLIBC__)
  if (asked == "off") return {false, "switched off"};
  if (const char* name = tuning_variable(variables)) return {false, std::string(name) + " tunes the allocator"};
  if (asked == "on") return {true, "switched on"};
  if (!launched) return {false, "the process was started alone"};
  for (auto reason : {limit_of_process(), limit_of_container()})
    if (!reason.empty()) return {false, std::move(reason)};
  return {true, "a launcher started the rank and no limit is near"};
#else
  return {false, "the C library is not glibc"};
#endif
}

bool keep_freed_memory() {
#if defined(__GLIBC__)
  // Large blocks come from the heap instead of separate mappings, and the heap does not shrink.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): at start, before threads
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_TOP_PAD, 64 << 20) == 1;
#else
  return false;
#endif
}

void release_freed_memory() {
#if defined(__GLIBC__)
  // Where another allocator replaces glibc's (jemalloc, a sanitizer), this call is the first that glibc's gets and sets
  // it up, which two threads must not do at the same time.
  static const int set_up = malloc_trim(0);
  static_cast<void>(set_up);
  malloc_trim(0);
#endif
}

}  // namespace muster::device
