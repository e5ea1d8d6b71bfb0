#pragma once

#include <exception>

#include "data/random.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/loader_state.h"
#include "muster/data/sampler.h"

namespace muster::data {

// Why: docs/decisions/0010-own-order-for-every-world.md.

/// How the samples of a pass are split into batches of the ranks.
struct BatchSplit {
  int64_t batch_size = 1;
  bool dispatch = false;  ///< an incomplete last step is split evenly over the ranks, with padding
  bool drop_last = false;
  bool even = true;
  bool filler = false;  ///< instead of `even`: a rank without samples in the last step gets a batch of repeats
  /// Samples (or batches) at the start of the pass that belong to no step; fewer than one step. Nonzero for a pass that
  /// is resumed with another step size: its steps begin where the saved steps ended.
  int64_t offset = 0;
  int rank = 0;
  int64_t size = 0;  ///< samples in a pass; for plan_of_batches(), batches
  bool split_batches = false;
  int world_size = 1;
};

/// Samples start ... start + count - 1 in the order of the pass; an index at or beyond size means index modulo size.
struct OrderRange {
  int64_t count = 0;
  int64_t start = 0;
};

/// Maps each batch of a rank to its range in the order of the pass: Accelerate's BatchSamplerShard and, with dispatch,
/// DataLoaderDispatcher in closed form. A world of one never pads. See also plan_of_batches().
class SplitPlan {
 public:
  /// Throws: ConfigError (MU107) if the batch size is below one, or split into pieces of unequal size.
  explicit SplitPlan(const BatchSplit& split);
  /// Number of batches of this rank.
  int64_t batches() const;
  OrderRange order_range(int64_t batch) const;
  StepSamples samples(int64_t batch) const;
  /// Position of a step's first sample in the order of the pass.
  int64_t start_of(int64_t step) const { return split_.offset + step * step_size(); }
  /// Number of samples in a full batch of this rank.
  int64_t local_batch_size() const;
  /// Number of samples in a full step of all ranks.
  int64_t step_size() const;
  int64_t size() const { return split_.size; }
  const BatchSplit& split() const { return split_; }
  /// Whether an incomplete last step is padded.
  bool pads() const { return (split_.even || split_.filler) && !split_.drop_last; }
  /// Whether the last step is incomplete.
  bool ends_short() const { return (split_.size - split_.offset) % step_size() != 0; }
  /// Number of indices at or beyond size() in this rank's batches.
  int64_t padding() const;

 private:
  int64_t piece_size(int64_t batch) const;
  /// Number of samples in the batches of all ranks, of which `real` are in the pass.
  int64_t total(int64_t batch, int64_t real) const;

  BatchSplit split_;
};

/// The plan for whole batches of a batch sampler, each in place of a sample: world_size of them make a step.
/// Throws: ConfigError (MU107) with split_batches.
SplitPlan plan_of_batches(BatchSplit split);

/// The samples of one batch.
struct BatchContent {
  std::vector<int64_t> indices;
  bool last = false;                 ///< true for the last batch of a rank's pass
  bool none = false;                 ///< true if the rank has no part of the step, so that no batch is made
  std::unique_ptr<Records> records;  ///< samples of a stream
  StepSamples samples;
  std::string state;  ///< state of a stateful stream after the batch was read
  const std::atomic<bool>* stop = nullptr;
};

/// The contents of this rank's batches in one pass.
class BatchOrder {
 public:
  virtual ~BatchOrder() = default;
  /// True: any thread may prepare() any batch at any time. False: one thread at a time, batch after batch in order.
  virtual bool random_access() const { return false; }
  /// Returns false if the pass ends before this batch, or if `content.stop` was set.
  virtual bool prepare(int64_t batch, BatchContent& content) = 0;
};

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
  ComputedOrder(const SplitPlan& plan, bool shuffle, uint64_t seed, int64_t epoch);
  bool random_access() const override { return true; }
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  Permutation permutation_;
  SplitPlan plan_;
  bool shuffle_;
};

/// The order of a user-defined sampler, starting at `first_batch`.
/// Throws: UsageError (MU109) for an index outside the dataset.
class SampledOrder : public IndexOrder {
 public:
  SampledOrder(const SplitPlan& plan, std::shared_ptr<Sampler> sampler, int64_t dataset_size, int64_t epoch,
               int64_t first_batch);
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  int64_t cursor_ = 0;
  int64_t dataset_size_;
  std::vector<int64_t> head_;  // indices that padding repeats
  SplitPlan plan_;
  std::shared_ptr<Sampler> sampler_;
};

/// The order of a user-defined batch sampler, starting at `first_batch`.
/// Throws: UsageError (MU109) for an index outside the dataset.
class BatchSampledOrder : public IndexOrder {
 public:
  /// `plan`: as plan_of_batches() makes it.
  BatchSampledOrder(const SplitPlan& plan, std::shared_ptr<BatchSampler> sampler, int64_t dataset_size, int64_t epoch,
                    int64_t first_batch);
  StepSamples fill(int64_t batch, std::vector<int64_t>& indices) override;

 private:
  int64_t dataset_size_;
  std::vector<std::vector<int64_t>> head_;
  SplitPlan plan_;
  std::shared_ptr<BatchSampler> sampler_;
};

// Why: docs/decisions/0032-streams.md.

/// The samples of a stream, distributed as by SplitPlan although the end is not known in advance: reading is one step
/// ahead, and the first samples are kept if the last step may need padding. Every rank reads the stream and skips the
/// samples of other ranks. With BatchSplit::dispatch this rank reads for all ranks: batch `step * world + i` is rank
/// i + 1's part of the step, and this rank's part comes last.
class StreamOrder : public BatchOrder {
 public:
  struct Settings {
    BatchSplit split;  ///< split of the pass; its size is not used
    int64_t first_step = 0;
    EpochRandom random;
    std::string state;  ///< state of a stateful stream at the first step
  };
  StreamOrder(std::shared_ptr<BatchMaker> maker, Settings settings);
  bool prepare(int64_t batch, BatchContent& content) override;

 private:
  struct Step {
    std::unique_ptr<Records> kept;  ///< samples of the step that this rank needs
    int64_t number = 0;
    int64_t real = 0;
    std::string state;
  };
  int64_t start_of(int64_t step) const { return settings_.split.offset + step * step_size_; }
  SplitPlan plan(int rank, const Step& step) const;
  bool has_part(int rank, const Step& step) const;
  bool start(const std::atomic<bool>* stop);
  void read_step(int64_t number, const std::atomic<bool>* stop);
  bool read_one(Records& to);
  bool skip_to(int64_t position, const std::atomic<bool>* stop);
  void take_part(int rank, BatchContent& content) const;

  bool ended_ = false;
  std::exception_ptr failed_;      // exception from reading ahead
  int64_t from_, to_;              // range of a step that this rank keeps
  std::unique_ptr<Records> head_;  // samples that padding repeats
  int64_t head_size_ = 0;
  std::shared_ptr<BatchMaker> maker_;
  std::optional<Step> next_, now_;
  int64_t position_ = 0;  // number of samples read or skipped
  std::shared_ptr<StreamReader> reader_;
  Settings settings_;
  bool started_ = false;
  int64_t step_size_;
};

/// The samples of a map-style dataset that this rank reads for all ranks: batch `step * world + i` is rank i + 1's part
/// of the step, and this rank's part comes last, as in StreamOrder.
class DispatchedOrder : public BatchOrder {
 public:
  /// Makes the order of a pass in which one rank gets everything, from batch `first` on.
  using Whole = std::function<std::shared_ptr<IndexOrder>(const SplitPlan&, int64_t first)>;
  DispatchedOrder(const BatchSplit& split, int64_t first_step, const Whole& whole);
  bool prepare(int64_t batch, BatchContent& content) override;

 private:
  SplitPlan plan(int rank) const;

  BatchSplit split_;
  std::vector<int64_t> head_;  // indices that padding repeats
  BatchContent step_;          // samples of all ranks in the current step
  std::shared_ptr<IndexOrder> whole_;
};

/// The order of ready-made batches in a pass: as listed, or shuffled from (seed, epoch) alone. Represents a batch by
/// the indices of its samples.
class ReadyBatchSampler final : public BatchSampler {
 public:
  ReadyBatchSampler(const ReadyBatchEnds& batches, bool shuffle, uint64_t seed, int64_t epoch);
  int64_t size() const override { return static_cast<int64_t>(ends_.size()); }
  void start(int64_t) override { position_ = 0; }
  std::vector<int64_t> next() override;
  void seek(int64_t batch) override { position_ = batch; }

 private:
  std::vector<int64_t> ends_;
  Permutation permutation_;
  int64_t position_ = 0;
  bool shuffle_;
};

}  // namespace muster::data
