#include "muster/device/host_memory.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <string>

namespace muster::device {
namespace {

[[maybe_unused]] bool tuned_by_user(const Environment& variables) {
  for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_"})
    if (variables.has(name)) return true;
  return variables.find("GLIBC_TUNABLES").value_or("").find("glibc.malloc") != std::string::npos;
}

}  // namespace

bool may_keep_freed_memory([[maybe_unused]] const Environment& variables) {
#if defined(__GLIBC__)
  return variables.find("MUSTER_KEEP_MEMORY") != "0" && !tuned_by_user(variables);
#else
  return false;
#endif
}

bool keep_freed_memory(const Environment& variables) {
#if defined(__GLIBC__)
  if (!may_keep_freed_memory(variables)) return false;
  // Large blocks come from the heap, not from mappings of their own, and the heap does not shrink.
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 && mallopt(M_TOP_PAD, 64 << 20) == 1;
#else
  return false;
#endif
}

void release_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace muster::device
