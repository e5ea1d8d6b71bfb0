#include "muster/data/random.h"

#include <bit>
#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include "comm/agreement.h"
#include "data/random.h"
#include "hook/random_scope.h"
#include "muster/base/error.h"

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

void broadcast_state(const comm::Communicator& group, at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  const auto state = generator.get_state().clone();
  group.internal("the state of a generator").broadcast(state, 0);
  generator.set_state(state);
}

uint64_t shared_seed(const comm::Communicator& group, const std::string& order, uint64_t seed) {
  auto all = group.internal("comparing loaders").all_gather_bytes(std::to_string(seed) + ":" + order);
  const auto seed_of_rank_0 = std::stoull(all.front());
  for (auto& text : all) text.erase(0, text.find(':') + 1);
  if (const auto found = comm::first_difference(all))
    throw ConfigError(
        "MU115", "ranks prepare different loaders: rank 0 has " + found->first + "; rank " +
                     std::to_string(found->rank) + " has " + found->other +
                     ": give all ranks the same dataset and options, and prepare loaders in the same order on each");
  return seed_of_rank_0;
}

void synchronize_generators(const comm::Communicator& group, c10::Device device, const SyncedGenerators& which) {
  if (which.cpu) broadcast_state(group, at::globalContext().defaultGenerator(at::kCPU));
  if (which.device && !device.is_cpu()) broadcast_state(group, at::globalContext().defaultGenerator(device));
}

}  // namespace muster::data

namespace muster {

SampleRandom::SampleRandom(uint64_t seed, int64_t epoch, int64_t index)
    : state_(data::mix(data::mix(seed, static_cast<uint64_t>(epoch)), static_cast<uint64_t>(index))) {}

uint64_t SampleRandom::operator()() { return data::mix(state_ += 0x9e3779b97f4a7c15ull); }

uint64_t SampleRandom::below(uint64_t bound) {
  // Numbers below 2^64 mod bound would make small results more likely, so they are rejected.
  const uint64_t unfair = (0 - bound) % bound;
  for (;;)
    if (const uint64_t x = (*this)(); x >= unfair) return x % bound;
}

at::Generator SampleRandom::generator() { return at::make_generator<at::CPUGeneratorImpl>((*this)()); }

void EpochRandom::seed_operators(int64_t index) const noexcept {
  // The seed differs from the numbers of the sample's SampleRandom, so that the two sequences differ.
  if (auto* scope = hook::RandomScope::current()) scope->seed(~at(index)());
}

}  // namespace muster
