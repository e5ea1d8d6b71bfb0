#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

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

}  // namespace muster
