#pragma once

#include <cstdint>
#include <limits>

#include <ATen/core/Generator.h>

namespace muster {

/// The random numbers of one sample in one epoch, independent of which worker or rank makes the sample, and when.
/// Counter-based (SplitMix64 over a key mixed from seed, epoch and index; Steele, Lea, Flood 2014). Works as a
/// generator for the distributions in <random>. LibTorch operators take generator(); without a generator argument they
/// also draw the sample's numbers instead of using the default generator.
class SampleRandom {
 public:
  using result_type = uint64_t;
  SampleRandom(uint64_t seed, int64_t epoch, int64_t index);

  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return std::numeric_limits<uint64_t>::max(); }
  uint64_t operator()();
  /// A number in [0, 1).
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  /// An unbiased integer in [0, bound). Requires: bound > 0.
  uint64_t below(uint64_t bound);
  /// A new CPU generator for this sample, seeded with the next number. Costs about a microsecond.
  at::Generator generator();

 private:
  uint64_t state_;
};

/// The random numbers of every sample in one epoch.
class EpochRandom {
 public:
  EpochRandom(uint64_t seed, int64_t epoch) : epoch_(epoch), seed_(seed) {}
  SampleRandom at(int64_t index) const { return {seed_, epoch_, index}; }
  /// Makes random LibTorch operators that a dataset runs on this thread draw the numbers of this sample from now on.
  void seed_operators(int64_t index) const noexcept;
  int64_t epoch() const noexcept { return epoch_; }

 private:
  int64_t epoch_;
  uint64_t seed_;
};

}  // namespace muster
