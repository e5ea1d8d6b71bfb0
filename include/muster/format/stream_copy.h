#pragma once

#include <cstddef>

namespace muster::format {

/// Copies memory that does not overlap, past the processor's caches where it can: for large data that is not used at once,
/// which spares the memory one read of what is overwritten and leaves the caches to others.
void stream_copy(void* to, const void* from, std::size_t bytes);

}  // namespace muster::format
