#pragma once

#include <cstddef>

namespace muster::comm {

/// What is larger than this is not read from a cache again.
inline constexpr std::size_t kCacheBytes = std::size_t{16} << 20;

/// As memcpy(), or as copy_past_caches().
void copy_memory(void* to, const void* from, std::size_t bytes, bool past_caches);
/// As memcpy(), for what nobody reads soon: `to` is neither read nor kept in a cache.
void copy_past_caches(void* to, const void* from, std::size_t bytes);
/// As memcpy(), for what fits a cache together with what it is copied to.
void copy_in_caches(void* to, const void* from, std::size_t bytes);
/// As copy_past_caches(), for much that a far core has written: the processor's string copy reads it at a higher rate.
void copy_string(void* to, const void* from, std::size_t bytes);

/// Nanoseconds until lines that another core has just written, and nobody has read since, are here: some 20 from a core
/// with the same last-level cache, 100 and more from others. 0 where past_caches has no effect.
double read_latency(const std::byte* written, std::size_t bytes);
/// With more, a core's new lines come slower through its cache than through memory.
inline constexpr double kNearNanoseconds = 60;

}  // namespace muster::comm
