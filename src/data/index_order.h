#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch_order.h"
#include "muster/data/sampler.h"
#include "permutation.h"
#include "shard_plan.h"

namespace muster::data {

/// The indices of this rank's batches in one pass.
class IndexOrder : public BatchOrder {
 public:
  explicit IndexOrder(int64_t batches) : batches_(batches) {}
  bool prepare(int64_t batch, BatchContent& content) final;
  /// Replaces `indices` by those of this batch.
  virtual StepSamples fill(int64_t batch, std::vector<int64_t>& indices) = 0;

 private:
  int64_t batches_;
};

/// The order 0, 1, 2, ... or a permutation of it.
class ComputedOrder : public IndexOrder {
 public:
  ComputedOrder(const ShardPlan& plan, bool shuffle, uint64_t seed, int64_t epoch);
  bool random_access() const override { return true; }
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  Permutation permutation_;
  ShardPlan plan_;
  bool shuffle_;
};

/// The order of a user-defined sampler, starting at `first_batch`.
/// Throws: UsageError (MU109) for an index outside the dataset.
class SampledOrder : public IndexOrder {
 public:
  SampledOrder(const ShardPlan& plan, std::shared_ptr<Sampler> sampler, int64_t dataset_size, int64_t epoch,
               int64_t first_batch);
  bool random_access() const override { return false; }
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  int64_t cursor_ = 0;
  int64_t dataset_size_;
  std::vector<int64_t> head_;  // indices that padding repeats
  ShardPlan plan_;
  std::shared_ptr<Sampler> sampler_;
};

/// The order of a user-defined batch sampler, starting at `first_batch`.
/// Throws: UsageError (MU109) for an index outside the dataset.
class BatchSampledOrder : public IndexOrder {
 public:
  BatchSampledOrder(const BatchShardPlan& plan, std::shared_ptr<BatchSampler> sampler, int64_t dataset_size,
                    int64_t epoch, int64_t first_batch);
  bool random_access() const override { return false; }
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  int64_t dataset_size_;
  std::vector<std::vector<int64_t>> head_;
  BatchShardPlan plan_;
  std::shared_ptr<BatchSampler> sampler_;
};

}  // namespace muster::data
