#pragma once

#include <cstddef>

namespace muster::comm {

/// What is larger than this is not read from a cache again.
inline constexpr std::size_t kCacheBytes = std::size_t{16} << 20;

/// As memcpy(). `past_caches`: nobody reads `to` soon, so its memory is neither read nor kept in a cache.
void copy_memory(void* to, const void* from, std::size_t bytes, bool past_caches);

}  // namespace muster::comm
