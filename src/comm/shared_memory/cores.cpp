#include "comm/shared_memory/cores.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace muster::comm {
namespace {

namespace fs = std::filesystem;

/// Reads a CPU limit: "200000 100000" are two cores; "max 100000" means no limit.
int granted_by(const fs::path& file) {
  std::ifstream in(file);
  int64_t quota = 0, period = 0;
  if (!(in >> quota >> period) || period <= 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

/// The process's control group below /sys/fs/cgroup, such as "/jobs/7".
std::string own_group() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return "/";
}

constexpr std::size_t kLine = 64;

#if defined(__x86_64__)
bool has_fast_strings() {
  static const bool has = [] {
    constexpr unsigned kEnhancedRepMovsb = 1u << 9;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & kEnhancedRepMovsb) != 0;
  }();
  return has;
}
#endif

}  // namespace

cpu_set_t own_cores() {
  cpu_set_t cores{};
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) CPU_ZERO(&cores);
  return cores;
}

int granted_cores() {
  const fs::path root = "/sys/fs/cgroup";
  int least = granted_by(root / "cpu.max");
  fs::path group = root;
  for (const auto& part : fs::path(own_group()).relative_path())
    least = std::min(least, granted_by((group /= part) / "cpu.max"));
  return least;
}

void copy_memory(void* to, const void* from, std::size_t bytes, bool past_caches) {
  if (past_caches) copy_past_caches(to, from, bytes);
  else std::memcpy(to, from, bytes);
}

void copy_past_caches(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= 2 * kLine) {
    const std::size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    std::memcpy(to, from, head);
    auto* out = static_cast<std::byte*>(to) + head;
    const auto* in = static_cast<const std::byte*>(from) + head;
    for (bytes -= head; bytes >= kLine; bytes -= kLine, out += kLine, in += kLine) {
      const auto* words = reinterpret_cast<const __m128i*>(in);
      auto* line = reinterpret_cast<__m128i*>(out);
      for (int word = 0; word < 4; ++word) _mm_stream_si128(line + word, _mm_loadu_si128(words + word));
    }
    // Ordered before any write that tells others the copy is complete.
    _mm_sfence();
    std::memcpy(out, in, bytes);
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void copy_in_caches(void* to, const void* from, std::size_t bytes) {
  // Prefetching a block (in bytes) ahead makes its lines arrive in parallel, instead of one by one as they are written.
  constexpr std::size_t kBlock = 2048;
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  for (std::size_t begin = 0; begin < bytes; begin += kBlock) {
    const std::size_t size = std::min(kBlock, bytes - begin);
    for (std::size_t line = 0; line < size; line += kLine) __builtin_prefetch(out + begin + line, 1);
    std::memcpy(out + begin, in + begin, size);
  }
}

void copy_string(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (has_fast_strings()) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  copy_past_caches(to, from, bytes);
}

double read_latency([[maybe_unused]] const std::byte* written, [[maybe_unused]] std::size_t bytes) {
#if defined(__x86_64__)
  using Clock = std::chrono::steady_clock;
  std::array<double, 3> found{};
  for (std::size_t i = 0; i < found.size(); ++i) {
    // Reads downwards with gaps; otherwise the core would prefetch the next line.
    const std::byte* line = written + bytes * (found.size() - i) / (found.size() + 1);
    const auto begin = Clock::now(), middle = Clock::now();
    [[maybe_unused]] const auto value = *static_cast<const volatile std::byte*>(line);
    const auto end = Clock::now();
    found[i] = std::chrono::duration<double, std::nano>((end - middle) - (middle - begin)).count();
  }
  std::ranges::sort(found);
  return found[1];
#else
  return 0;
#endif
}

}  // namespace muster::comm
