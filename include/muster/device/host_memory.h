#pragma once

#include "muster/base/environment.h"

namespace muster::device {

/// From now on this process keeps the memory that it frees and uses it again, instead of giving large blocks back to the system and
/// having them back page by page, zeroed, in the next step. The process stays as large as it once was.
/// Does nothing, and says so by false, where `variables` tune the C library's allocator already (MALLOC_MMAP_THRESHOLD_,
/// MALLOC_MMAP_MAX_, MALLOC_TRIM_THRESHOLD_, or glibc.malloc in GLIBC_TUNABLES), where MUSTER_KEEP_MEMORY is 0, and with a C library
/// other than glibc. A process-wide setting.
bool keep_freed_memory(const Environment& variables = Environment::of_process());

/// Whether keep_freed_memory() would do something.
bool may_keep_freed_memory(const Environment& variables = Environment::of_process());

/// Gives what is free now back to the system.
void release_freed_memory();

}  // namespace muster::device
