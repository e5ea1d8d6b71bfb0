#pragma once

#include <sched.h>

#include <cstddef>

/// The cores of a host: which of them a process may use, how far apart they are, and how to copy through their caches
/// or past them.
namespace muster::comm {

/// The cores on which this process may run; none if the system does not tell.
cpu_set_t own_cores();

/// The number of cores' worth of time that the process's control groups (of a container) grant; a large number if they
/// set no limit.
int granted_cores();

/// Tensors of more bytes than this are not read from a cache again.
inline constexpr std::size_t kCacheBytes = std::size_t{16} << 20;

/// memcpy(), or copy_past_caches() if `past_caches` is set.
void copy_memory(void* to, const void* from, std::size_t bytes, bool past_caches);
/// memcpy() for data that nobody reads soon: `to` is neither read nor kept in a cache.
void copy_past_caches(void* to, const void* from, std::size_t bytes);
/// memcpy() for data that fits into a cache together with its destination.
void copy_in_caches(void* to, const void* from, std::size_t bytes);
/// copy_past_caches() for much data that a far core has written: the processor's string copy reads it at a higher rate.
void copy_string(void* to, const void* from, std::size_t bytes);

/// Nanoseconds to load lines that another core has just written and nobody has read since: about 20 from a core with
/// the same last-level cache, 100 and more from others. 0 if past_caches has no effect.
/// Why: docs/decisions/0131-far-cores-exchange-through-memory.md.
double read_latency(const std::byte* written, std::size_t bytes);
/// Nanoseconds. Above this latency, lines that a core has just written arrive later from its cache than from memory. It
/// lies between the latencies of near (20) and far cores (110) in
/// docs/decisions/0131-far-cores-exchange-through-memory.md.
inline constexpr double kNearNanoseconds = 60;

}  // namespace muster::comm
