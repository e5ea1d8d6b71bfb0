#pragma once

#include "muster/comm/communicator.h"
#include "muster/runtime/options.h"
#include "muster/tree/state.h"

namespace muster::runtime {

/// A rank's position in a window of gradient accumulation. A micro-batch is counted once its weight is in the window's
/// sums: by its first loss or, if it has none, when the gradients are used or the next micro-batch begins.
enum class WindowState : uint8_t {
  closed,          ///< no window is open and all is counted: the optimizer steps; the next micro-batch begins a window
  open,            ///< the window continues, and all is counted
  open_uncounted,  ///< the window continues, and the current micro-batch is not counted yet
  last_uncounted,  ///< the current micro-batch ends the window, and is not counted yet
  left_uncounted,  ///< the current micro-batch is this rank's last, and is not counted yet; others continue the window
  left             ///< this rank's last micro-batch is counted; other ranks continue the window
};

enum class WindowEvent : uint8_t {
  begin_middle,  ///< a micro-batch begins that does not end the window
  begin_last,    ///< a micro-batch begins that ends the window
  begin_leave,   ///< a micro-batch begins that ends the window on this rank only
  count,         ///< the weight of the current micro-batch is added
  end,           ///< the current micro-batch, before its backward, is made the end of the window
  reset,         ///< the window is abandoned, or a closed window is loaded
  resume         ///< an open window is loaded
};

/// The state after an event; nullopt if the event cannot occur: a micro-batch begins only when the previous one is
/// counted.
std::optional<WindowState> transition(WindowState state, WindowEvent event) noexcept;

/// True if the optimizer steps after the current micro-batch, and before the first micro-batch.
constexpr bool ends_window(WindowState state) {
  return state == WindowState::closed || state == WindowState::last_uncounted;
}

/// True if only other ranks continue the window.
constexpr bool ends_here_only(WindowState state) {
  return state == WindowState::left_uncounted || state == WindowState::left;
}

/// True if no micro-batch waits to be counted.
constexpr bool all_counted(WindowState state) {
  return state == WindowState::closed || state == WindowState::open || state == WindowState::left;
}

/// A rank's position in its window of gradient accumulation. Thread safety: one thread at a time.
class WindowPosition {
 public:
  /// Begins a micro-batch. A window ends when Accelerate's Accelerator.step is a multiple of `num_steps`, and with the
  /// last micro-batch of a loader (`last`), but on this rank only if others go on. Returns whether it is a multiple.
  /// Requires: the micro-batch before is counted.
  bool begin(int num_steps, bool last, bool others_go_on) noexcept;
  /// A loss of the current micro-batch goes through backward.
  void note_backward() noexcept { went_backward_ = true; }
  /// The weight of the current micro-batch is in the window's sums.
  void count() noexcept { advance(WindowEvent::count); }
  /// Makes the current micro-batch the last of the window. Requires: it did not go through backward.
  void end() noexcept;
  /// Goes back to the start of a window.
  void reset() noexcept;

  /// True if no micro-batch of the window was begun, or all were and are counted.
  bool closed() const noexcept { return state_ == WindowState::closed; }
  /// True if the optimizer steps after this micro-batch, and before the first one.
  bool ends() const noexcept { return ends_window(state_); }
  /// True if this rank's part of the window ends with the current micro-batch, whether or not others continue it.
  bool ends_here() const noexcept { return ends() || left(); }
  /// True if only other ranks continue the window.
  bool left() const noexcept { return ends_here_only(state_); }
  bool all_counted() const noexcept { return runtime::all_counted(state_); }
  /// True in a window that this rank has begun, not finished, and could continue.
  bool unfinished() const noexcept { return state_ == WindowState::open || state_ == WindowState::open_uncounted; }
  /// Whether a loss of the current micro-batch went through backward.
  bool went_backward() const noexcept { return went_backward_; }
  /// True until the first backward of a window: the gradients in memory are those of the window before.
  bool begins() const noexcept { return micro_batches_ <= 1 && !went_backward_; }
  /// Number of micro-batches begun in the window.
  int micro_batches() const noexcept { return micro_batches_; }

  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209), and then changes nothing.
  void load_state_dict(const State& state);

 private:
  void advance(WindowEvent event) noexcept;

  WindowState state_ = WindowState::closed;
  int64_t step_ = 0;  // micro-batches, as Accelerate's Accelerator.step: a window ends at each multiple of num_steps
  int micro_batches_ = 1;
  bool went_backward_ = false;
};

/// What the current loader knows about the current step, in which each rank has at most one batch. Without a loader,
/// the micro-batch of every rank has weight 1.
struct MicroBatch {
  bool every_rank = true;    ///< every rank has a micro-batch in this step
  int64_t full = 0;          ///< samples of all ranks in a full step; 0 if batch sizes vary
  bool last = false;         ///< true for the last micro-batch of a loader
  int64_t local = 1;         ///< samples of this rank, with repeated ones
  int64_t samples_left = 0;  ///< samples of other ranks in later steps, in which this rank has none
  int64_t total = 0;         ///< samples of all ranks, with repeated ones; 0 if unknown
};

/// The weights of a window's micro-batches, as GradientWeighting::mean has them. Thread safety: one thread at a time.
///
/// Every loss is multiplied by n * ranks / N, where n is its number of samples and N that of a full window over all
/// ranks. So the mean over ranks of the summed gradients is sum(n_i g_i) / N, and a full window of equal batches needs
/// no correction. A window that turns out to hold another number of samples is corrected before its last backward.
/// Why: docs/decisions/0054-weights-and-scales.md.
class WindowWeights {
 public:
  void begin_window() noexcept;
  /// Begins a micro-batch, whose weight is its number of samples.
  void begin(const MicroBatch& batch) noexcept;
  /// Sets the weight of the micro-batch, in place of its number of samples.
  void weigh(double count) noexcept;
  /// Adds the current micro-batch to the sums. Requires: it is not added yet.
  void add_up(const MicroBatch& batch, int num_steps) noexcept;
  /// Chooses N, unless that was done in this window. Requires: the current micro-batch is added.
  /// Collective: for the first window in which weigh() was called.
  void choose_full(const MicroBatch& batch, int num_steps, const comm::Communicator& group);
  /// Compares N with the sum over all ranks, now that the last micro-batch is added. Returns the factor by which
  /// gradients of earlier losses have to be multiplied.
  /// Collective: in a window in which weigh() was called.
  double correct(const comm::Communicator& group);
  /// The factor for a loss of the current micro-batch. Requires: choose_full().
  double factor(int ranks) noexcept;
  /// True if loaders knew `total` in all of this window, on every rank.
  bool known_by_all() const noexcept { return known_by_all_; }

  State state_dict() const;
  /// Throws: CheckpointError (MU208, MU209), and then changes nothing.
  void load_state_dict(const State& state);

 private:
  double count_ = 1;          // weight of the current micro-batch
  double local_ = 0;          // sum of the weights in the window on this rank
  double known_ = 0;          // sum of the weights over all ranks, as far as loaders know
  double full_ = 0;           // N: the sum of weights that this window's losses are weighted for; 0: not chosen
  double correction_ = 1;     // factor on the current micro-batch's losses
  double agreed_ = 0;         // the last sum that ranks had to agree on
  bool known_by_all_ = true;  // loaders knew `total` in all of this window
  bool weighted_ = false;     // a loss of this window was weighted
};

/// Whether the program is inside join_uneven_inputs(), and by which number of ranks sums of gradients are divided
/// there.
enum class Joined : uint8_t { no, by_all_ranks, by_active_ranks };

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
  /// Throws: UsageError (MU585) inside join_uneven_inputs() if sums of gradients are divided by fewer ranks.
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
  bool communicates() const noexcept { return sync() || (options_.sync_each_batch && !joined()); }
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
  void set_joined(Joined joined) noexcept;
  /// The other ranks have ended the window that this rank has left.
  void end_left_window() noexcept {
    if (window_.left()) reset();
  }
  /// Whether ranks may have made different numbers of steps.
  bool joined() const noexcept { return joined_ != Joined::no; }
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
  Joined joined_ = Joined::no;
  bool used_ = false;  // a micro-batch was begun, or the warning that none was has been given
};

}  // namespace muster::runtime
