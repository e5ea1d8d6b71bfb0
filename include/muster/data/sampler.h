#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/detail/batch_maker.h"
#include "muster/tree/detail/visit.h"

namespace muster {

/// Base class of custom sample orders. Every rank runs its own copy over the whole pass, so all ranks must return equal
/// indices: derive them from the epoch, not from a clock.
/// Thread safety: called by one thread at a time, which may be a worker.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// The number of indices in a pass. Known before the pass begins.
  virtual int64_t size() const = 0;
  /// Begins a pass at its first index. May be called several times for one pass.
  virtual void start(int64_t epoch) = 0;
  /// The next index of the pass. Called exactly size() times in a pass.
  virtual int64_t next() = 0;
  /// Called right after start(): the following next() must return the index at `position`.
  /// The default steps there; override it if the index can be computed directly.
  virtual void seek(int64_t position) {
    for (int64_t i = 0; i < position; ++i) next();
  }
};

/// Base class of custom batches of varying size. The rules of Sampler apply to whole batches instead of indices.
/// Batches are assigned to ranks round-robin; with even_batches the last round is completed with the first batches of
/// the pass.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// The number of batches in a pass, all ranks together.
  virtual int64_t size() const = 0;
  virtual void start(int64_t epoch) = 0;
  virtual std::vector<int64_t> next() = 0;
  virtual void seek(int64_t batch) {
    for (int64_t i = 0; i < batch; ++i) next();
  }
};

/// The given batches in the given order, in every epoch: BatchListSampler({{0, 1}, {2}}).
class BatchListSampler : public BatchSampler {
 public:
  /// Throws: ConfigError (MU120) for a batch without an index.
  explicit BatchListSampler(std::vector<std::vector<int64_t>> batches);
  BatchListSampler(std::initializer_list<std::vector<int64_t>> batches) : BatchListSampler(std::vector(batches)) {}
  int64_t size() const override { return static_cast<int64_t>(batches_.size()); }
  void start(int64_t) override { position_ = 0; }
  std::vector<int64_t> next() override { return batches_.at(static_cast<size_t>(position_++)); }
  void seek(int64_t batch) override { position_ = batch; }

 private:
  std::vector<std::vector<int64_t>> batches_;
  int64_t position_ = 0;
};

/// The indices 0, 1, 2, ...
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t size) : size_(size) {}
  int64_t size() const override { return size_; }
  void start(int64_t) override { position_ = 0; }
  int64_t next() override { return position_++; }
  void seek(int64_t position) override { position_ = position; }

 private:
  int64_t position_ = 0;
  int64_t size_;
};

/// A permutation that depends on (seed, epoch) alone: the order of `.shuffle = true`.
class RandomSampler : public Sampler {
 public:
  RandomSampler(int64_t size, uint64_t seed) : seed_(seed), size_(size) {}
  int64_t size() const override { return size_; }
  void start(int64_t epoch) override;
  int64_t next() override;
  void seek(int64_t position) override { position_ = position; }

 private:
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  uint64_t seed_;
  int64_t size_;
};

/// Indices drawn in proportion to weights, from (seed, epoch) alone.
/// With replacement, each position is drawn independently, so any position costs the same. Without replacement, no
/// index repeats; the order is that of successive draws from the remaining indices, computed as a race of exponential
/// clocks (Efraimidis and Spirakis 2006).
class WeightedRandomSampler : public Sampler {
 public:
  /// `count` indices per pass. Weights need not sum to 1; an index of weight 0 is never drawn.
  /// Throws: ConfigError (MU116) for weights that are negative, not finite or all 0, or too few for `count` without
  /// replacement.
  WeightedRandomSampler(std::vector<double> weights, int64_t count, uint64_t seed, bool replacement = true);
  int64_t size() const override { return count_; }
  void start(int64_t epoch) override;
  int64_t next() override;
  void seek(int64_t position) override { position_ = position; }

 private:
  double uniform(int64_t position) const;
  void race();

  int64_t count_;
  int64_t epoch_ = 0;
  std::vector<int64_t> order_;  // without replacement: the order in epoch `raced_`
  int64_t position_ = 0;
  std::optional<int64_t> raced_;
  bool replacement_;
  uint64_t seed_;
  std::vector<double> weights_;  // with replacement: running sums of the weights
};

/// Ready-made batches, which a DataLoader returns as they are; see from_batches(). Ranks get batches in turn, as with a
/// BatchSampler. The first tensor of a batch, or its first list, has a row per sample. A batch shares its tensors with
/// the list, unless it is moved to another device.
template <class Batch>
class Batches {
 public:
  explicit Batches(std::vector<Batch> batches) : batches_(std::move(batches)) {}
  const std::vector<Batch>& list() const noexcept { return batches_; }

 private:
  std::vector<Batch> batches_;
};

/// Marks a list as ready-made batches: DataLoader(from_batches(list), {.shuffle = true}). (A plain list is a dataset
/// whose elements are samples.)
template <class Batch>
Batches<Batch> from_batches(std::vector<Batch> batches) {
  return Batches<Batch>(std::move(batches));
}

namespace data {

template <class Batch>
struct BatchOf<Batches<Batch>> : std::type_identity<Batch> {};
template <class Batch>
struct BatchOf<const Batches<Batch>> : std::type_identity<Batch> {};

/// Numbers the samples of ready-made batches in order: batch i has the samples [ends[i - 1], ends[i]).
class ReadyBatchEnds {
 public:
  /// Throws: ConfigError (MU323) for a batch without samples.
  void add(int64_t samples);
  const std::vector<int64_t>& ends() const noexcept { return ends_; }
  int64_t samples() const noexcept { return ends_.empty() ? 0 : ends_.back(); }
  /// The batch to which a sample belongs.
  size_t batch_of(int64_t sample) const;

 private:
  std::vector<int64_t> ends_;
};

template <class Batch>
class ReadyBatchMaker final : public BatchMaker {
 public:
  explicit ReadyBatchMaker(std::shared_ptr<const Batches<Batch>> batches) : batches_(std::move(batches)) {
    for (const auto& batch : batches_->list()) {
      std::optional<int64_t> rows;
      tree::visit(
          batch, [&]<class L>(const L& leaf) requires(tree::tensor<L> || tree::plain_list<L>) {
            if (rows) return;
            if constexpr (!tree::tensor<L>) rows = std::ssize(leaf);
            else if (leaf.defined() && leaf.dim() > 0) rows = leaf.size(0);
          });
      ends_.add(rows.value_or(1));
    }
  }

  int64_t size() const override { return ends_.samples(); }
  std::unique_ptr<BatchBox> new_box() const override { return std::make_unique<BatchBoxOf<Batch>>(); }
  bool make(const BatchRequest& request, BatchBox& box) override {
    static_cast<BatchBoxOf<Batch>&>(box).batch.emplace(batches_->list()[ends_.batch_of(request.indices.front())]);
    return true;
  }
  std::shared_ptr<BatchMaker> for_worker() override { return std::make_shared<ReadyBatchMaker>(batches_); }
  const ReadyBatchEnds* ready_batches() const override { return &ends_; }

 private:
  std::shared_ptr<const Batches<Batch>> batches_;
  ReadyBatchEnds ends_;
};

template <class Batch>
struct MakerOf<Batches<Batch>, Batch> : std::type_identity<ReadyBatchMaker<Batch>> {};
template <class Batch>
struct MakerOf<const Batches<Batch>, Batch> : std::type_identity<ReadyBatchMaker<Batch>> {};

}  // namespace data
}  // namespace muster
