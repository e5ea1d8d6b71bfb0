#pragma once

#include "muster/base/environment.h"
#include "muster/device/options.h"

#include <string>

namespace muster::device {

/// Whether freed memory is kept in this process, and why.
struct KeptMemory {
  bool kept = false;
  std::string reason;
};

/// What becomes of the wish: the variable MUSTER_KEEP_MEMORY (auto, on or 1, off or 0) counts where it is "auto". Memory is never kept
/// where `variables` tune the C library's allocator already (MALLOC_MMAP_THRESHOLD_, MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_, or
/// glibc.malloc in GLIBC_TUNABLES), and with a C library other than glibc. Changes nothing. `launched`: by a launcher.
/// Throws: ConfigError (MU002) for a variable with another value, (MU171) for one that contradicts "on" or "off".
KeptMemory choose_kept_memory(KeepMemory wish, bool launched, const Environment& variables = Environment::of_process());

/// From now on this process keeps the memory that it frees and uses it again, instead of giving large blocks back to the system and
/// having them back page by page, zeroed, in the next step. The process stays as large as it once was. A
/// process-wide setting. Returns false if the C library refuses.
bool keep_freed_memory();

/// Gives what is free now back to the system.
void release_freed_memory();

}  // namespace muster::device
