#pragma once

#include <cstdint>

#include "muster/data/detail/loader_state.h"

namespace muster::data {

/// How a job's samples are distributed over the ranks.
struct BatchSharding {
  int64_t batch_size = 1;
  bool dispatch = false;  ///< an incomplete last step is split into one part per rank, of equal size except for padding
  bool drop_last = false;
  bool even = true;
  bool filler = false;  ///< in place of `even`: a rank without a sample in the last step gets a batch of repeated ones
  /// Samples (or batches) at the start of the pass that belong to no step, fewer than one step. A pass that is resumed
  /// with another step size has some: its steps begin where the saved ones ended.
  int64_t offset = 0;
  int rank = 0;
  int64_t size = 0;  ///< samples in a pass, or batches for BatchShardPlan
  bool split = false;
  int world_size = 1;
};

/// Samples start ... start + count - 1 in the order of the pass; an index at or beyond size means index modulo size.
struct OrderRange {
  int64_t count = 0;
  int64_t start = 0;
};

/// Which part of the pass's order each batch of a rank holds: Accelerate's BatchSamplerShard and, with dispatch, its
/// DataLoaderDispatcher in closed form. A world of one never pads.
class ShardPlan {
 public:
  /// Throws: ConfigError (MU107) if the batch size is below one, or split into pieces of unequal size.
  explicit ShardPlan(const BatchSharding& sharding);
  /// Batches of this rank.
  int64_t batches() const;
  OrderRange order_range(int64_t batch) const;
  StepSamples samples(int64_t batch) const;
  /// Where a step begins in the order of the pass.
  int64_t start_of(int64_t step) const { return sharding_.offset + step * step_size(); }
  /// Samples in a full batch of this rank.
  int64_t local_batch_size() const;
  /// Samples in a full step of all ranks.
  int64_t step_size() const;
  int64_t size() const { return sharding_.size; }
  /// Whether an incomplete last step is padded.
  bool pads() const { return (sharding_.even || sharding_.filler) && !sharding_.drop_last; }
  /// Indices at or beyond size() in this rank's batches.
  int64_t padding() const;

 private:
  int64_t piece_size(int64_t batch) const;
  /// In the batches of all ranks, of which `real` are in the pass.
  int64_t total(int64_t batch, int64_t real) const;

  BatchSharding sharding_;
};

/// The same for whole batches of a batch sampler: world_size batches make a step.
class BatchShardPlan {
 public:
  /// Throws: ConfigError (MU107) with split.
  explicit BatchShardPlan(const BatchSharding& sharding);
  /// Batches of this rank.
  int64_t batches() const;
  /// Whether the last step is completed with batches from the start of the pass.
  bool pads() const;
  const BatchSharding& sharding() const { return sharding_; }

 private:
  BatchSharding sharding_;
};

}  // namespace muster::data
