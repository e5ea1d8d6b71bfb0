#include "muster/data/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include "hook/random_scope.h"
#include "permutation.h"

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
