#pragma once  // for other rooms

#include <string>

#include "muster/base/environment.h"
#include "muster/device/options.h"

namespace muster::device {

/// Whether freed memory is kept in this process, and why.
struct KeptMemory {
  bool kept = false;
  std::string reason;
};

/// Decides whether freed memory is kept; changes nothing itself. If `in_code` is "auto", the variable
/// MUSTER_KEEP_MEMORY applies (auto, on or 1, off or 0). Memory is never kept if `variables` already tune the C
/// library's allocator (MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_, or glibc.malloc in
/// GLIBC_TUNABLES), or with a C library other than glibc. `launched`: a launcher started this process. Throws:
/// ConfigError (MU002) for a variable with another value.
KeptMemory choose_kept_memory(KeepMemory in_code, bool launched,
                              const Environment& variables = Environment::of_process());

/// Makes this process keep and reuse the memory that it frees. Without this call it would return large blocks to the
/// system and get them back in the next step, page by page, zeroed. The process never shrinks afterwards. A
/// process-wide setting. Returns false if the C library refuses.
/// Why: docs/decisions/0042-freed-memory-is-kept.md.
bool keep_freed_memory();

/// Returns currently unused memory to the system.
void release_freed_memory();

}  // namespace muster::device
