#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "muster/comm/detail/tag.h"
#include "parallel/replicated/round_record.h"
#include "parallel/sharded/residency.h"

namespace muster::parallel {

/// The reductions of gradients within one backward: each unit's reduction starts when its gradients are complete, and
/// at most kUnderWay run at a time. Where whole parameters stay (stages optimizer and gradients) they start in a fixed
/// order, from the last unit to the first, so that ranks may get gradients in different orders, or not at all.
/// Thread safety: the caller's.
class Reductions {
 public:
  static constexpr size_t kUnderWay = 2;

  /// Requires: units and settings outlive this object; no unit is added later.
  Reductions(const Units& units, const ShardSettings& settings);

  void begin();
  /// All gradients of the unit have arrived. Collective.
  void complete(size_t unit);
  /// More gradients have arrived after complete().
  void reopen(size_t unit);
  /// Starts all reductions that have not been started. Collective.
  void start_rest();
  /// The same outside of a backward: JobRounds does not record it.
  void start_unrecorded();
  /// All messages of this backward have been sent.
  void record_end() { record_.end(); }
  /// Waits for all running reductions.
  void wait();
  /// After a failure: discards everything that waits or is running.
  void cancel() noexcept;
  int64_t started() const noexcept { return started_; }
  void join_job(const std::shared_ptr<JobRounds>& job, int64_t place);

 private:
  void start(size_t unit);
  void label(const std::string& model);

  const Units& units_;
  bool in_order_;
  std::vector<size_t> order_;  // of units with gradients
  std::vector<char> complete_, reduced_;
  size_t next_ = 0;  // index into order_
  std::deque<size_t> under_way_;
  int64_t started_ = 0;
  std::vector<comm::Tag> tags_;  // by unit, without the step
  RoundRecord record_;
  bool unrecorded_ = false;  // not within a backward
};

}  // namespace muster::parallel
