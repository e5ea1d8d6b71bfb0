#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel/reduction_record.h"
#include "parallel/replicated/replica.h"

namespace muster::parallel {

/// What ranks exchange in a reduction, beside gradients: numbers that are summed with the last bucket, or in host
/// memory where that is on a device. Per parameter: 1 where this rank has a gradient; then per parameter: 1 where it
/// should have one and has none; then: 1 if something unexpected has happened; then: 1 if there are late gradients;
/// then: 1 if this rank has parameters that were unfrozen and have no bucket yet; then: 1 if this rank has batches;
/// then per vote of the ReductionRecord: 1 if this rank gives it; then per parameter: 1 where a rank with batches has
/// frozen it. Sums of ones compare well with 0 in every dtype, so both a flag and its opposite are summed.
struct ReductionFlags {
  /// Number of elements for this many parameters.
  static int64_t count(size_t parameters) { return 3 * static_cast<int64_t>(parameters) + 4 + ReductionRecord::kVotes; }
  /// Writes this rank's flags. `due`: whether trainable parameters should have gradients. Requires: some parameter.
  static void write(const Replica& replica, bool due, bool broken, bool late, bool unfrozen, unsigned votes);
  /// Reads the flags of all ranks, after the sum; none is set where there is no parameter.
  static ReductionFlags read(const Replica& replica);

  /// Whether some rank had a loss.
  bool any() const;
  /// Which parameters lack gradients on some ranks, or all; empty: none.
  std::string missing(const Replica& replica) const;
  /// Which parameters only some of the ranks with batches have frozen; empty: none.
  std::string frozen_on_some(const Replica& replica) const;

  std::vector<double> used, unused, frozen;
  double due = 0;
  bool broken = false, late = false, unfrozen = false;
  unsigned votes = 0;  ///< a bit for each that some rank gave
};

}  // namespace muster::parallel
