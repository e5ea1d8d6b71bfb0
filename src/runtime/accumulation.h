#pragma once

#include "muster/dist/communicator.h"
#include "muster/runtime/options.h"
#include "muster/tree/state.h"

#include <cstdint>
#include <functional>

namespace muster::runtime {

/// What a loader in use knows of the step in hand; without one, every rank's micro-batch counts 1.
struct MicroBatch {
  int64_t full = 0;     ///< samples of all ranks in a full step; 0 where steps vary
  bool last = false;    ///< it ends its loader
  int64_t local = 1;    ///< samples of this rank, repeated ones included
  int64_t rest = 0;     ///< of other ranks in later steps, in which this rank has none
  int64_t total = 0;    ///< as `local`, over all ranks; 0 where nobody knows
};

/// Which micro-batches end a window, and what each counts for in it. Thread safety: one thread at a time.
///
/// Weighting "mean": every loss is multiplied by n * ranks / N, where n is its samples and N the samples of a full window
/// over all ranks, so that the mean over ranks of the sums of gradients is sum(n_i g_i) / N, and a full window of equal
/// batches costs nothing. A window that turns out to hold another number of samples is corrected before its last backward.
/// A micro-batch without a loss on this rank counts as any other, wherever it stands in the window: its gradient is zero. So no rank
/// need know which losses the others had.
class Accumulation {
 public:
  /// Throws: ConfigError (MU181) for less than one step.
  Accumulation(const GradientAccumulationOptions& options, dist::Communicator group);

  /// A micro-batch begins. `rescale` multiplies all gradients so far.
  void begin(const MicroBatch& batch, std::function<void(double)> rescale);
  /// It ends; no loss is weighted until the next one begins.
  void end() noexcept { inside_ = false; }
  /// The micro-batch counts for this many, in place of its samples.
  /// Throws: UsageError (MU182) once a loss of it went backward; (MU183) while ranks are joined.
  void weigh(double count);
  /// The optimizer steps with this micro-batch. True before the first one.
  bool sync() const noexcept { return sync_; }
  /// An optimizer steps: warns, once, where several micro-batches were asked for and none was ever begun, and settles.
  /// Collective: as loss_factor().
  void note_step();
  /// The gradients of this window are about to be used, or to be sent for good: if its last micro-batch had no loss, it counts now.
  /// Collective: as loss_factor(), which other ranks call.
  void settle();
  /// Joined ranks do so only where a window ends: a rank without batches has no gradients to add to.
  bool communicates() const noexcept { return sync_ || (options_.sync_each_batch && !joined_); }
  /// What a loss is multiplied by. Gradients so far may be rescaled first.
  /// Collective: at the end of a window in which weigh() was called, and in the first such one.
  double loss_factor();

  int num_steps() const noexcept { return options_.num_steps; }
  /// Throws: ConfigError (MU181) for less than one step.
  void set_num_steps(int steps);
  /// Steps that a scheduler takes at the end of this window.
  int scheduler_steps() const noexcept { return options_.adjust_scheduler ? micro_batches_ : 1; }
  void use_group(const dist::Communicator& group) { group_ = group; }
  /// Ranks may run out of batches, and nothing is communicated here. A window that other ranks go on with after this rank's last
  /// batch stays open; its gradients are sent with theirs.
  void set_joined(bool joined) noexcept;
  /// Back to the start of a window.
  void reset() noexcept;
  /// Micro-batches of an unfinished window so far; 0 between windows.
  int open_micro_batches() const noexcept { return fresh_ ? 0 : micro_batches_; }

  /// Where the window stands on this rank; the number of its steps included.
  State save_state() const;
  /// Throws: CheckpointError (MU208, MU209, MU240 for another number of steps in an open window), and changes nothing then.
  void load_state(const State& state);

 private:
  double mean_factor();
  double full_window();
  double known_full_window() const;
  void add_up();
  void count();
  State state() const;

  GradientAccumulationOptions options_;
  dist::Communicator group_;
  MicroBatch batch_;
  std::function<void(double)> rescale_;
  double count_ = 1;             // of this micro-batch
  double own_ = 0;               // counts of the window on this rank
  double known_ = 0;             // and over all ranks, as far as loaders know
  double full_ = 0;              // the number that this window's losses are weighted for
  double correction_ = 1;        // of this micro-batch's losses
  double agreed_ = 0;            // the last number that ranks had to agree on
  int64_t counter_ = 0;
  int micro_batches_ = 1;        // of the window
  bool goes_on_ = false;         // the window, on other ranks only
  bool inside_ = false;
  bool sync_ = true;
  bool used_ = false;            // a micro-batch was begun, or it was said that none was
  bool fresh_ = true;            // the next micro-batch begins a window
  bool joined_ = false;
  bool known_by_all_ = true;     // in this window
  bool counted_ = true;          // this micro-batch is; true before the first one
  bool weighted_ = false;        // a loss of this window was
};

}  // namespace muster::runtime
