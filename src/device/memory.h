#pragma once  // for other rooms

#include <cstdint>

#include <c10/core/Device.h>

#include "muster/base/environment.h"
#include "muster/device/options.h"

namespace muster::device {

/// Memory of a device, in bytes, as its allocator counts it for this process.
struct MemoryUse {
  int64_t allocated = 0;      ///< bytes in tensors now
  int64_t peak = 0;           ///< largest number of bytes that were in tensors at one time
  int64_t reserved = 0;       ///< bytes taken from the device, free pieces included
  int64_t reserved_peak = 0;  ///< largest number of bytes that were taken at one time
};

/// nullopt for the CPU, and for a device whose allocator keeps no statistics or is not initialized yet.
std::optional<MemoryUse> memory_use(at::Device device);

/// "sim:0 holds 12.0 MiB in tensors now and held 15.5 MiB at most; 20.0 MiB are reserved, and 20.0 MiB were at most";
/// an empty string if nothing is known.
std::string describe_memory(at::Device device);

/// Bytes of pinned host memory, free pieces included, that the allocator for copies to this kind of device holds; 0 if
/// it keeps no statistics.
int64_t pinned_bytes(at::Device device);

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
