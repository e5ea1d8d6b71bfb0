#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/reduction_record.h"
#include "parallel/replicated/replica.h"

namespace muster::parallel {

/// What ranks exchange in a reduction besides gradients: numbers that are summed with the last bucket, or in host
/// memory if that bucket is on a device. In this order:
/// - per parameter: 1 if this rank has a gradient;
/// - per parameter: 1 if this rank should have a gradient and has none;
/// - 1 if something unexpected has happened; 1 if there are late gradients; 1 if this rank has parameters that were
///   unfrozen and have no bucket yet; 1 if this rank has batches;
/// - per bit of the program's Piggyback: 1 if this rank sends it;
/// - per parameter: 1 if a rank with batches has frozen it.
/// In every dtype a sum of ones can be compared with 0 safely, so both a flag and its opposite are summed.
struct ReductionFlags {
  /// Number of elements for this many parameters.
  static int64_t count(size_t parameters) { return 3 * static_cast<int64_t>(parameters) + 4 + Piggyback::kBits; }
  /// Writes this rank's flags. `due`: whether trainable parameters should have gradients. Requires: some parameter.
  static void write(const Replica& replica, bool due, bool broken, bool late, bool unfrozen, unsigned bits);
  /// Reads the flags of all ranks, after the sum. No flag is set if there are no parameters.
  static ReductionFlags read(const Replica& replica);

  /// Whether any rank had a loss.
  bool any() const;
  /// Names the parameters that lack gradients on some ranks, or on all; empty: none.
  std::string missing(const Replica& replica) const;
  /// Names the parameters that only some of the ranks with batches have frozen; empty: none.
  std::string frozen_on_some(const Replica& replica) const;

  std::vector<double> used, unused, frozen;
  double due = 0;
  bool broken = false, late = false, unfrozen = false;
  unsigned bits = 0;  ///< the bits that some rank sent
};

}  // namespace muster::parallel
