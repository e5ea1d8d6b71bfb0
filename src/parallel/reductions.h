#pragma once

#include "parallel/residency.h"

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace muster::parallel {

/// The reductions of gradients within one backward: each unit's starts when its gradients are complete, and at most
/// kUnderWay are under way. Where whole parameters stay (stages optimizer and gradients) they start in a fixed order, from the
/// last unit to the first, so that ranks may get gradients in different orders, or not at all.
/// Thread safety: the caller's.
class Reductions {
 public:
  static constexpr size_t kUnderWay = 2;

  /// Requires: units and settings outlive this object; no unit is added later.
  Reductions(const Units& units, const ShardSettings& settings);

  void begin();
  /// All gradients of the unit have arrived. Collective.
  void complete(size_t unit);
  /// More have come after complete().
  void reopen(size_t unit);
  /// Starts what has not been started. Collective.
  void start_rest();
  /// Waits for all that is under way.
  void settle();
  /// After a failure: forgets all that waits or is under way.
  void cancel() noexcept;
  int64_t started() const noexcept { return started_; }
  void note_step(int64_t step) noexcept { step_ = step; }
  void set_place(int64_t place) { model_ = "model " + std::to_string(place) + ", "; }

 private:
  void start(size_t unit);

  const Units& units_;
  bool in_order_;
  std::vector<size_t> order_;        // of units with gradients
  std::vector<char> complete_, reduced_;
  size_t next_ = 0;                  // place in order_
  std::deque<size_t> under_way_;
  int64_t started_ = 0;
  int64_t step_ = -1;
  std::string model_;
};

}  // namespace muster::parallel
