#pragma once

#include <cstdint>

#include "muster/comm/communicator.h"
#include "muster/tree/state.h"

namespace muster::runtime {

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

}  // namespace muster::runtime
