#include "permutation.h"

#include <bit>

namespace muster::data {
namespace {

// One multiplication per round keeps the cost of an index near 20 ns; the product's high bits depend on all input bits.
inline uint64_t round_value(uint64_t half, uint64_t key) {
  uint64_t x = (half + key) * 0x9e3779b97f4a7c15ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  return x >> 32;
}

// Halves of few bits mix slowly: with 8 rounds, permutations of five samples are measurably uneven; with 24, no size
// is.
constexpr int64_t kSmall = 4096;
constexpr int kRounds = 8, kRoundsOfSmall = 24;

}  // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch)
    : rounds_(size <= kSmall ? kRoundsOfSmall : kRounds), size_(static_cast<uint64_t>(size)) {
  static_assert(kRoundsOfSmall <= kMostRounds && kRounds <= kMostRounds);
  const int bits = size > 1 ? std::bit_width(size_ - 1) : 0;
  low_bits_ = bits / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
  uint64_t key = mix(seed, static_cast<uint64_t>(epoch));
  for (auto& k : keys_) k = key = mix(key, 1);
}

uint64_t Permutation::once(uint64_t x) const {
  uint64_t low = x & low_mask_;
  uint64_t high = x >> low_bits_;
  for (int i = 0; i < rounds_; i += 2) {
    high ^= round_value(low, keys_[i]) & high_mask_;
    low ^= round_value(high, keys_[i + 1]) & low_mask_;
  }
  return high << low_bits_ | low;
}

int64_t Permutation::operator()(int64_t order_index) const {
  auto x = static_cast<uint64_t>(order_index);
  do x = once(x);
  while (x >= size_);
  return static_cast<int64_t>(x);
}

}  // namespace muster::data
