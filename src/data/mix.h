#pragma once

#include <cstdint>

namespace muster::data {

/// SplitMix64's finalizer (Stafford's variant 13): every input bit affects every output bit.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

constexpr uint64_t mix(uint64_t a, uint64_t b) {
  return mix(mix(a + 0x9e3779b97f4a7c15ull) ^ (b + 0xd1b54a32d192ed03ull));
}

}  // namespace muster::data
