#pragma once

#include <cstdint>

#include "muster/data/detail/loader_state.h"

namespace muster::data {

// Why: docs/decisions/0010-own-order-for-every-world.md.

/// How a job's samples are distributed over the ranks.
struct BatchSharding {
  int64_t batch_size = 1;
  bool dispatch = false;  ///< an incomplete last step is split evenly over the ranks, with padding
  bool drop_last = false;
  bool even = true;
  bool filler = false;  ///< instead of `even`: a rank without samples in the last step gets a batch of repeats
  /// Samples (or batches) at the start of the pass that belong to no step; fewer than one step. Nonzero for a pass that
  /// is resumed with another step size: its steps begin where the saved steps ended.
  int64_t offset = 0;
  int rank = 0;
  int64_t size = 0;  ///< samples in a pass; for BatchShardPlan, batches
  bool split = false;
  int world_size = 1;
};

/// Samples start ... start + count - 1 in the order of the pass; an index at or beyond size means index modulo size.
struct OrderRange {
  int64_t count = 0;
  int64_t start = 0;
};

/// Maps each batch of a rank to its range in the order of the pass: Accelerate's BatchSamplerShard and, with dispatch,
/// DataLoaderDispatcher in closed form. A world of one never pads.
class ShardPlan {
 public:
  /// Throws: ConfigError (MU107) if the batch size is below one, or split into pieces of unequal size.
  explicit ShardPlan(const BatchSharding& sharding);
  /// Number of batches of this rank.
  int64_t batches() const;
  OrderRange order_range(int64_t batch) const;
  StepSamples samples(int64_t batch) const;
  /// Position of a step's first sample in the order of the pass.
  int64_t start_of(int64_t step) const { return sharding_.offset + step * step_size(); }
  /// Number of samples in a full batch of this rank.
  int64_t local_batch_size() const;
  /// Number of samples in a full step of all ranks.
  int64_t step_size() const;
  int64_t size() const { return sharding_.size; }
  /// Whether an incomplete last step is padded.
  bool pads() const { return (sharding_.even || sharding_.filler) && !sharding_.drop_last; }
  /// Number of indices at or beyond size() in this rank's batches.
  int64_t padding() const;

 private:
  int64_t piece_size(int64_t batch) const;
  /// Number of samples in the batches of all ranks, of which `real` are in the pass.
  int64_t total(int64_t batch, int64_t real) const;

  BatchSharding sharding_;
};

/// As ShardPlan, for whole batches of a batch sampler: world_size batches make a step.
class BatchShardPlan {
 public:
  /// Throws: ConfigError (MU107) with split.
  explicit BatchShardPlan(const BatchSharding& sharding);
  /// Number of batches of this rank.
  int64_t batches() const;
  /// Whether the last step is completed with batches from the start of the pass.
  bool pads() const;
  const BatchSharding& sharding() const { return sharding_; }

 private:
  BatchSharding sharding_;
};

}  // namespace muster::data
