#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "muster/comm/operation_label.h"
#include "parallel/reduction_recorder.h"
#include "parallel/sharded/unshard_scheduler.h"

namespace muster::parallel {

/// The reductions of gradients within one backward: each unit's reduction starts when its gradients are complete, and
/// at most kMaxInFlight run at a time. Where full parameters stay (stages optimizer and gradients) they start in a
/// fixed order, from the last unit to the first, so that ranks may get gradients in different orders, or not at all.
/// Thread safety: the caller's.
class ReductionScheduler {
 public:
  static constexpr size_t kMaxInFlight = 2;

  /// Requires: units, groups and settings outlive this object; no unit is added later, but units may get gradients:
  /// add_units().
  ReductionScheduler(const Units& units, const ShardGroups& groups, const ShardSettings& settings);

  /// `awaited`: the number of gradients that each unit can get. `freezing_change`: what this rank's reductions say.
  void begin(const std::vector<size_t>& awaited, bool freezing_change);
  /// Some rank has said `freezing_change` in this backward. Requires: wait().
  bool any_freezing_change();
  /// Takes in units that have gradients now, and starts reductions of these, with what this rank collected for them.
  /// Collective.
  void add_units(const std::vector<size_t>& units);
  /// All gradients of the unit have arrived. Collective.
  void complete(size_t unit);
  /// Backward has come to the unit: units after it that wait for no gradient, since all of theirs are frozen here, are
  /// reduced at the same place as on a rank that trains them. Collective.
  void on_backward_reached(size_t unit);
  /// More gradients have arrived after complete().
  void reopen(size_t unit);
  /// Starts all reductions that have not been started. Collective.
  void start_rest();
  /// The same outside of a backward: ReductionRecord does not record it.
  void start_unrecorded();
  /// All messages of this backward have been sent.
  void record_end() { recorder_.end(); }
  /// Whether any unit has gradients.
  bool any() const noexcept { return !order_.empty(); }
  /// Waits for all running reductions; on a device the stream of reductions does, and the host waits only for what
  /// ranks say of the gradients that they had, in one message.
  void wait();
  /// After a failure: discards everything that waits or is running.
  void cancel() noexcept;
  int64_t started() const noexcept { return started_; }
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index);

 private:
  void start(size_t unit);
  void start_flags();
  void finish_flags();
  void label(const std::string& model);
  void set_order();

  const Units& units_;
  const ShardGroups& groups_;
  bool in_order_;
  std::vector<size_t> order_;  // of units with gradients
  std::vector<char> complete_, reduced_;
  std::vector<char> expects_no_gradient_;  // by unit: it waits for no gradient in this backward
  size_t next_ = 0;                        // index into order_
  std::deque<size_t> in_flight_;
  int64_t started_ = 0;
  std::vector<comm::OperationLabel> labels_;  // by unit, without the step
  ReductionRecorder recorder_;
  bool unrecorded_ = false;  // not within a backward
  bool freezing_change_ = false;
  std::string model_;
  comm::OperationLabel flag_label_;
  bool has_unsent_flags_ = false;  // on a device: units were reduced since flags were exchanged
  at::Tensor flags_;               // of all units, on their way
  comm::Work flag_work_;
};

}  // namespace muster::parallel
