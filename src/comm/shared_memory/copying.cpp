#include "comm/shared_memory/copying.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace muster::comm {

void copy_memory(void* to, const void* from, std::size_t bytes, bool past_caches) {
#if defined(__x86_64__)
  constexpr std::size_t kLine = 64;
  if (past_caches && bytes >= 2 * kLine) {
    const std::size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    auto* out = static_cast<std::byte*>(to) + head;
    const auto* in = static_cast<const std::byte*>(from) + head;
    for (bytes -= head; bytes >= kLine; bytes -= kLine, out += kLine, in += kLine) {
      const auto* words = reinterpret_cast<const __m128i*>(in);
      auto* line = reinterpret_cast<__m128i*>(out);
      for (int word = 0; word < 4; ++word) _mm_stream_si128(line + word, _mm_loadu_si128(words + word));
    }
    // Ordered before whatever says that the copy is there.
    _mm_sfence();
    std::memcpy(out, in, bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace muster::comm
