#pragma once

#include <deque>

#include "muster/comm/communicator.h"
#include "parallel/reduction_record.h"
#include "parallel/sharded/unshard_scheduler.h"

namespace muster::parallel {

/// The exchange of the flags that say which gradients ranks had, where they are apart from gradients, on a device: one
/// message for all units, in host memory over the host side of the groups, so that nothing waits for the device.
/// Thread safety: the caller's.
class FlagExchange {
 public:
  /// Requires: units and groups outlive this object.
  FlagExchange(const Units& units, const ShardGroups& groups) : units_(units), groups_(groups) {}

  /// Names the message, for this model.
  void label(const std::string& model);
  /// The unit is being reduced: start() sends its flags if they are apart.
  void add(size_t unit);
  /// Sends the flags of these units if any was added. Collective.
  void start(const std::vector<size_t>& units, int64_t step);
  /// Waits for the message that was started, and gives these units the sums. Collective.
  void finish(const std::vector<size_t>& units);
  bool is_running() const noexcept { return unsent_ || flags_.defined(); }
  void cancel() noexcept;

 private:
  const Units& units_;
  const ShardGroups& groups_;
  comm::OperationLabel label_;
  bool unsent_ = false;  // whether units were added since start()
  at::Tensor flags_;     // flags that are being exchanged
  comm::Work work_;
};

/// Schedules the reductions of gradients within one backward: each unit's reduction starts when its gradients are
/// complete, and at most kMaxInFlight run at a time. If full parameters stay (stages optimizer and gradients),
/// reductions start in a fixed order, from the last unit to the first, so that ranks may get gradients in different
/// orders, or not at all.
/// Thread safety: the caller's.
class ReductionScheduler {
 public:
  static constexpr size_t kMaxInFlight = 2;

  /// `before_start`: called before a backward, or start_alone() of all units, reduces a unit. Requires: units, groups
  /// and settings outlive this object. No unit is added later, but units may get gradients: see add_units().
  ReductionScheduler(const Units& units, const ShardGroups& groups, const ShardSettings& settings,
                     std::function<void(size_t unit)> before_start);

  /// `awaited`: the number of gradients that each unit can get. `freezing_change`: sent with this rank's reductions.
  void begin(const std::vector<size_t>& awaited, bool freezing_change);
  /// Whether any rank has sent `freezing_change` in this backward. Requires: wait().
  bool any_freezing_change();
  /// Adds units that have gradients now, and starts their reductions with the gradients that this rank has collected.
  /// Collective.
  void add_units(const std::vector<size_t>& units);
  /// All gradients of the unit have arrived. Collective.
  void complete(size_t unit);
  /// Backward has reached the unit. Units after it that wait for no gradient, because all their parameters are frozen
  /// here, are reduced now, at the point where a rank that trains them reduces them. Collective.
  void on_backward_reached(size_t unit);
  /// More gradients have arrived after complete().
  void reopen(size_t unit);
  /// Starts all reductions that have not started yet. Collective.
  void start_rest();
  /// start_rest() outside of a backward, without an entry in the ReductionRecord. Collective.
  void start_alone();
  /// Starts the reduction of one unit in the same way. Collective.
  void start_alone(size_t unit);
  /// All messages of this backward, or of start_alone(), have been sent.
  void record_end();
  /// Whether any unit has gradients.
  bool any() const noexcept { return !order_.empty(); }
  /// Waits for all running reductions. On a device the reduction stream waits instead, and the host waits only for the
  /// flags that say which gradients ranks had, in one message.
  void wait();
  /// Whether reductions have started for which nobody has waited, or start_alone() has not been recorded as ended.
  bool is_running() const noexcept { return alone_ || !in_flight_.empty() || flags_.is_running(); }
  /// After a failure: discards everything that waits or is running.
  void cancel() noexcept;
  int64_t started() const noexcept { return started_; }
  void register_with(const std::shared_ptr<ReductionRecord>& record, int64_t index);

 private:
  void start(size_t unit);
  void send(size_t unit);
  void label(const std::string& model);
  void set_order();

  const Units& units_;
  const std::function<void(size_t unit)> before_start_;
  bool in_order_;
  std::vector<size_t> order_;  // units with gradients
  std::vector<char> complete_, reduced_;
  std::vector<char> expects_no_gradient_;  // by unit: whether it waits for no gradient in this backward
  size_t next_ = 0;                        // index into order_
  std::deque<size_t> in_flight_;
  int64_t started_ = 0;
  std::vector<comm::OperationLabel> labels_;  // by unit, without the step
  ReductionRecorder recorder_;
  bool alone_ = false;  // whether reductions run outside of a backward
  bool freezing_change_ = false;
  std::string model_;
  FlagExchange flags_;
};

}  // namespace muster::parallel
