#pragma once

#include <cstdint>
#include <functional>

#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"
#include "muster/tree/state.h"
#include "window_position.h"
#include "window_weights.h"

namespace muster::runtime {

// Why: docs/decisions/0054-weights-and-scales.md.

/// Decides which micro-batches end a window, and the weight of each in it. Thread safety: one thread at a time.
///
/// A window that turns out to hold another number of samples than a full one is corrected before its last backward.
/// Where ranks have different numbers of batches, those that only some ranks have count in the short last window of all
/// ranks. A micro-batch without a loss on this rank counts with a zero gradient, wherever it is in the window. So a
/// rank need not know which losses the others had.
class Accumulation {
 public:
  /// Throws: ConfigError (MU181) for less than one step.
  Accumulation(const GradientAccumulationOptions& options, comm::Communicator group);

  /// Begins a micro-batch. `rescale` multiplies all gradients accumulated so far.
  void begin(const MicroBatch& batch, std::function<void(double)> rescale);
  /// Ends the window with the current micro-batch, whatever num_steps says.
  /// Throws: UsageError (MU430) after a backward of one of its losses, whose gradients stayed on this rank; (MU431)
  /// inside join_uneven_inputs().
  void end_window();
  /// Ends the micro-batch: no loss is weighted until the next one begins.
  void end() noexcept { inside_ = false; }
  /// Sets the weight of the micro-batch, in place of its number of samples.
  /// Throws: UsageError (MU182) after a backward of one of its losses; (MU183) inside join_uneven_inputs().
  void weigh(double count);
  /// True if the optimizer steps after this micro-batch, and before the first one.
  bool sync() const noexcept { return window_.ends(); }
  /// True until the first backward of a window: the gradients in memory are those of the window before.
  bool begins() const noexcept { return window_.begins(); }
  /// Called when an optimizer steps: calls count_last(), and warns once if a window has several micro-batches but none
  /// was ever begun.
  /// Collective: as loss_factor().
  void note_step();
  /// Called before the gradients of this window are used or sent for the last time: counts the last micro-batch if it
  /// had no loss.
  /// Collective: as loss_factor(), which other ranks call.
  void count_last();
  /// True if this micro-batch communicates gradients. Inside join_uneven_inputs() only the end of a window does: a rank
  /// without batches has no gradients to add to.
  bool communicates() const noexcept { return sync() || (options_.sync_each_batch && !joined_); }
  /// Returns the factor for a loss. May first rescale the gradients accumulated so far.
  /// Throws: UsageError (MU345) in a window that only some ranks have, outside of join_uneven_inputs().
  /// Collective: at the end of a window in which weigh() was called, and in the first such window.
  double loss_factor();

  int num_steps() const noexcept { return options_.num_steps; }
  /// Throws: ConfigError (MU181) for less than one step.
  void set_num_steps(int steps);
  /// Number of steps that a scheduler takes at the end of this window.
  int scheduler_steps() const noexcept {
    const bool others_have_one_more = sync() && batch_.samples_left > 0;
    return options_.adjust_scheduler ? window_.micro_batches() + (others_have_one_more ? 1 : 0) : 1;
  }
  /// Number of steps that a scheduler takes at the ends of all windows of a loader with this many batches.
  int64_t scheduler_steps_of(int64_t batches) const noexcept {
    return options_.adjust_scheduler ? batches : (batches + options_.num_steps - 1) / options_.num_steps;
  }
  void use_group(const comm::Communicator& group) { group_ = group; }
  /// Inside join_uneven_inputs(), ranks may run out of batches, and this class communicates nothing. If other ranks
  /// continue a window after this rank's last batch, the window stays open, and its gradients are sent with theirs.
  void set_joined(bool joined) noexcept;
  /// Whether ranks may have made different numbers of steps.
  bool joined() const noexcept { return joined_; }
  /// Goes back to the start of a window.
  void reset() noexcept;
  /// Number of micro-batches so far in an open window; 0 between windows.
  int open_micro_batches() const noexcept { return sync() ? 0 : window_.micro_batches(); }
  /// True in a window that this rank has begun, not finished, and could continue.
  bool unfinished() const noexcept { return window_.unfinished(); }

  /// The state of the window on this rank, with its number of steps.
  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209, MU240 for another number of steps in an open window), and then changes
  /// nothing.
  void load_state_dict(const State& state);

 private:
  double mean_factor();
  void add_up();
  void count();
  void require_shared_window() const;

  GradientAccumulationOptions options_;
  comm::Communicator group_;
  MicroBatch batch_;
  std::function<void(double)> rescale_;
  WindowPosition window_;
  WindowWeights weights_;
  bool inside_ = false;  // a micro-batch's scope is open: losses are weighted
  bool joined_ = false;  // inside join_uneven_inputs()
  bool used_ = false;    // a micro-batch was begun, or the warning that none was has been given
};

}  // namespace muster::runtime
