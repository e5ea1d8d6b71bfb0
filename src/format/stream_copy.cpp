#include "muster/format/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace muster::format {

#ifdef __SSE2__
void stream_copy(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kAhead = 512;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine;
  if (head > bytes) head = bytes;
  std::memcpy(target, source, head);
  std::size_t done = head;
  for (; bytes - done >= kLine; done += kLine) {
    _mm_prefetch(source + done + kAhead, _MM_HINT_NTA);
    for (std::size_t part = done; part < done + kLine; part += sizeof(__m128i))
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + part), _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + part)));
  }
  std::memcpy(target + done, source + done, bytes - done);
  _mm_sfence();
}
#else
void stream_copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace muster::format
