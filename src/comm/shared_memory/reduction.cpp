#include "comm/shared_memory/reduction.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "comm/shared_memory/cores.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/// Goes before a loop whose iterations are independent, although its pointers may be equal.
#if defined(__clang__)
#define MUSTER_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define MUSTER_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace muster::comm {
namespace {

// Elements of a block. Its partial results stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

/// The type in which values of T are combined.
template <class T>
using Wide = std::conditional_t<std::is_integral_v<T>, T, std::conditional_t<std::is_same_v<T, double>, double, float>>;

template <ReduceOp op, class T>
[[gnu::always_inline]] inline T combined(T a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::sum || op == ReduceOp::max ? a || b : a && b;
  } else if constexpr (op == ReduceOp::min || op == ReduceOp::max) {
    if constexpr (std::is_floating_point_v<T>) {
      // As in LibTorch, a NaN stays a NaN.
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
    }
    return (op == ReduceOp::min ? b < a : a < b) ? b : a;
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
    return static_cast<T>(op == ReduceOp::product ? static_cast<U>(a) * static_cast<U>(b)
                                                  : static_cast<U>(a) + static_cast<U>(b));
  } else {
    return op == ReduceOp::product ? a * b : a + b;
  }
}

// LibTorch's conversions of bfloat16, without branches and floating-point comparisons, so that they vectorize.
template <class T>
[[gnu::always_inline]] inline Wide<T> widened(T value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) return std::bit_cast<float>(uint32_t{value.x} << 16);
  else return static_cast<Wide<T>>(value);
}

/// The upper half of the result is the bfloat16; the lower half is undefined.
[[gnu::always_inline]] inline uint32_t rounded_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool is_number = (bits & 0x7fffffff) <= 0x7f800000;
  return is_number ? bits + 0x7fff + (bits >> 16 & 1) : 0x7fc00000;
}

template <class T>
[[gnu::always_inline]] inline T narrowed(Wide<T> value) {
  if constexpr (std::is_same_v<T, c10::BFloat16>)
    return T(static_cast<uint16_t>(rounded_to_bfloat16(value) >> 16), T::from_bits());
  else return static_cast<T>(value);
}

template <ReduceOp op, class W>
[[gnu::always_inline]] inline W reduced(W a, W b) {
  const W both = combined<op, W>(a, b);
  if constexpr (op == ReduceOp::mean) return both / W{2};
  else return both;
}

/// Reduces two neighbours at once. Each half becomes a float by itself, so vectors are neither widened nor narrowed.
template <ReduceOp op>
[[gnu::always_inline]] inline uint32_t reduced_pair(uint32_t a, uint32_t b) {
  constexpr uint32_t kUpper = 0xffff0000;
  const float lower = reduced<op>(std::bit_cast<float>(a << 16), std::bit_cast<float>(b << 16));
  const float upper = reduced<op>(std::bit_cast<float>(a & kUpper), std::bit_cast<float>(b & kUpper));
  return rounded_to_bfloat16(lower) >> 16 | (rounded_to_bfloat16(upper) & kUpper);
}

struct Call {
  std::span<void* const> outs;
  const void* const* terms;
  std::size_t count;
  std::size_t elements;
  bool past_caches;
};

/// Copies what was just written to the first output to the others.
template <class T>
void copy_to_others(const Call& call, std::size_t begin, std::size_t size) {
  const T* from = static_cast<const T*>(call.outs[0]) + begin;
  for (void* const to : call.outs.subspan(1))
    copy_memory(static_cast<T*>(to) + begin, from, size * sizeof(T), call.past_caches);
}

/// Accesses values at any alignment.
template <class T>
struct Place {
  std::byte* bytes;
  [[gnu::always_inline]] T get(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    return value;
  }
  [[gnu::always_inline]] void set(std::size_t i, T value) const {
    std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
};

/// Reduces two terms, the most common case, in one pass. With a second store in the loop the compiler does not
/// vectorize element-wise conversions, so such results are copied to the second output block by block.
template <class T, bool stores_twice, class Reduce>
[[gnu::always_inline]] inline void reduce_each(const Call& call, std::size_t begin, std::size_t end,
                                               const Reduce& reduce) {
  const auto place = [](const void* at) { return Place<T>{static_cast<std::byte*>(const_cast<void*>(at))}; };
  const Place<T> out = place(call.outs[0]), first = place(call.terms[0]), second = place(call.terms[1]);
  if (stores_twice && call.outs.size() == 2 && !call.past_caches) {
    const Place<T> other = place(call.outs[1]);
    MUSTER_INDEPENDENT
    for (std::size_t i = begin; i < end; ++i) {
      const T value = reduce(first.get(i), second.get(i));
      out.set(i, value), other.set(i, value);
    }
    return;
  }
  const std::size_t at_once = call.outs.size() > 1 ? kBlock : end - begin;
  for (std::size_t next; begin < end; begin = next) {
    next = std::min(begin + at_once, end);
    MUSTER_INDEPENDENT
    for (std::size_t i = begin; i < next; ++i) out.set(i, reduce(first.get(i), second.get(i)));
    copy_to_others<T>(call, begin, next - begin);
  }
}

template <class T, ReduceOp op>
[[gnu::always_inline]] inline void reduce_two(const Call& call) {
  const auto reduce = [](T a, T b) { return narrowed<T>(reduced<op>(widened(a), widened(b))); };
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    const std::size_t pairs = call.elements / 2;
    reduce_each<uint32_t, true>(call, 0, pairs, reduced_pair<op>);
    reduce_each<T, false>(call, 2 * pairs, call.elements, reduce);
  } else {
    reduce_each<T, std::is_same_v<T, Wide<T>>>(call, 0, call.elements, reduce);
  }
}

template <class T, ReduceOp op>
[[gnu::always_inline]] inline void reduce_blocks(const Call& call) {
  using W = Wide<T>;
  if (call.count == 2) return reduce_two<T, op>(call);
  T* out = static_cast<T*>(call.outs[0]);
  W block[kBlock];
  const auto divisor = static_cast<W>(call.count);
  for (std::size_t begin = 0; begin < call.elements; begin += kBlock) {
    const std::size_t size = std::min(kBlock, call.elements - begin);
    const T* first = static_cast<const T*>(call.terms[0]) + begin;
    const T* second = static_cast<const T*>(call.terms[1]) + begin;
    for (std::size_t i = 0; i < size; ++i) block[i] = combined<op, W>(widened(first[i]), widened(second[i]));
    for (std::size_t term = 2; term < call.count; ++term) {
      const T* next = static_cast<const T*>(call.terms[term]) + begin;
      for (std::size_t i = 0; i < size; ++i) block[i] = combined<op, W>(block[i], widened(next[i]));
    }
    if constexpr (op == ReduceOp::mean)
      for (std::size_t i = 0; i < size; ++i) block[i] = block[i] / divisor;
    for (std::size_t i = 0; i < size; ++i) out[begin + i] = narrowed<T>(block[i]);
    copy_to_others<T>(call, begin, size);
  }
}

#if defined(__x86_64__)
template <class T, ReduceOp op>
[[gnu::target("avx2,f16c")]] void reduce_wide(const Call& call) {
  reduce_blocks<T, op>(call);
}

bool has_wide_vectors() {
  static const bool has = [] {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    // clang 16 does not know f16c in __builtin_cpu_supports.
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
  }();
  return has;
}

/// For dtypes with conversions, which limit the speed of a reduction; AVX-512 makes them faster. Other dtypes do not
/// gain from it.
template <class T, ReduceOp op>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] void reduce_masked(const Call& call) {
  reduce_blocks<T, op>(call);
}

bool has_masked_vectors() {
  static const bool has = has_wide_vectors() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
}
#endif

template <class T, ReduceOp op>
void reduce_as(const Call& call) {
#if defined(__x86_64__)
  if constexpr (!std::is_same_v<T, Wide<T>>)
    if (has_masked_vectors()) return reduce_masked<T, op>(call);
  if constexpr (!std::is_same_v<T, bool>)
    if (has_wide_vectors()) return reduce_wide<T, op>(call);
#endif
  reduce_blocks<T, op>(call);
}

template <class T>
void reduce_as(const Call& call, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum: return reduce_as<T, ReduceOp::sum>(call);
    case ReduceOp::min: return reduce_as<T, ReduceOp::min>(call);
    case ReduceOp::max: return reduce_as<T, ReduceOp::max>(call);
    case ReduceOp::product: return reduce_as<T, ReduceOp::product>(call);
    case ReduceOp::mean:
      if constexpr (!std::is_integral_v<T>) return reduce_as<T, ReduceOp::mean>(call);
  }
}

}  // namespace

void reduce_memory(std::span<void* const> outs, const std::vector<const void*>& terms, std::size_t elements,
                   at::ScalarType dtype, ReduceOp op, bool past_caches) {
  const Call call{outs, terms.data(), terms.size(), elements, past_caches};
  switch (dtype) {
    case at::ScalarType::Double: return reduce_as<double>(call, op);
    case at::ScalarType::Float: return reduce_as<float>(call, op);
    case at::ScalarType::Half: return reduce_as<c10::Half>(call, op);
    case at::ScalarType::BFloat16: return reduce_as<c10::BFloat16>(call, op);
    case at::ScalarType::Long: return reduce_as<int64_t>(call, op);
    case at::ScalarType::Int: return reduce_as<int32_t>(call, op);
    case at::ScalarType::Short: return reduce_as<int16_t>(call, op);
    case at::ScalarType::Char: return reduce_as<int8_t>(call, op);
    case at::ScalarType::Byte: return reduce_as<uint8_t>(call, op);
    case at::ScalarType::Bool: return reduce_as<bool>(call, op);
    default: return;
  }
}

}  // namespace muster::comm
