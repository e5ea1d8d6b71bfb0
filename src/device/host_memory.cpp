#include "device/host_memory.h"

#include "base/shown.h"
#include "base/spelling.h"
#include "muster/base/format.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <sys/resource.h>

#include <fstream>
#include <optional>
#include <string>

namespace muster::device {
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
