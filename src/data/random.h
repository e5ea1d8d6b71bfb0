#pragma once  // for other rooms

#include <array>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "muster/comm/communicator.h"
#include "muster/data/options.h"

/// Random orders as functions of (seed, epoch), and random generators in step between ranks.
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

/// A permutation of 0 ... size-1 that is computed, not stored: it needs no memory, and every index costs the same. A
/// Feistel network over as many bits as `size` needs, with cycle walking until the value is below `size` (Black and
/// Rogaway, Ciphers with Arbitrary Finite Domains, 2002): at most two walks on average.
/// Thread safety: const.
class Permutation {
 public:
  Permutation(int64_t size, uint64_t seed, int64_t epoch);
  int64_t operator()(int64_t order_index) const;

 private:
  static constexpr int kMostRounds = 24;
  uint64_t once(uint64_t x) const;

  std::array<uint64_t, kMostRounds> keys_{};
  uint64_t high_mask_ = 0;
  int low_bits_ = 0;
  uint64_t low_mask_ = 0;
  int rounds_;
  uint64_t size_;
};

/// Sets the generator to rank 0's state. Collective: with generators of one type on all ranks.
void broadcast_state(const comm::Communicator& group, at::Generator generator);

/// Returns rank 0's seed. Throws: ConfigError (MU115) on every rank if `order`, a description of the loader, differs
/// between ranks. Collective.
uint64_t shared_seed(const comm::Communicator& group, const std::string& order, uint64_t seed);

/// Sets the chosen generators to rank 0's state. Collective: if one is chosen.
void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which);

}  // namespace muster::data
