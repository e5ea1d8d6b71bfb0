#pragma once

#include "parallel/replica.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace muster::parallel {

/// What ranks tell each other in a round, beside gradients: numbers that are summed with the last bucket. Per parameter: 1 where this
/// rank has a gradient; then: 1 where it should have one and has none; then: something else than expected has happened; then: there are late
/// gradients. Sums of ones compare well with 0 in every dtype, so both sides of the question are asked.
struct RoundFlags {
  /// Elements for this many parameters.
  static int64_t count(size_t parameters) { return 2 * static_cast<int64_t>(parameters) + 2; }
  /// This rank's. `due`: gradients of trainable parameters are.
  static void write(const Replica& replica, bool due, bool broken, bool late);
  /// All ranks', after the sum.
  static RoundFlags read(const Replica& replica);

  /// Some rank had a loss.
  bool any() const;
  /// Which parameters lack gradients on some ranks, or all; empty: none.
  std::string missing(const Replica& replica) const;

  std::vector<double> used, unused;
  bool broken = false, late = false;
};

}  // namespace muster::parallel
