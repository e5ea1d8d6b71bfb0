#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/data/detail/batch_maker.h"
#include "muster/data/options.h"

namespace muster {

class BatchSampler;
class Sampler;

}  // namespace muster

namespace muster::data {

struct SampleSplit;

/// Any sampler, as a value or in a shared_ptr.
class AnySampler {
 public:
  template <class S>
    requires std::derived_from<S, Sampler>
  AnySampler(std::shared_ptr<S> sampler) : sampler_(std::move(sampler)) {}
  template <class S>
    requires std::derived_from<S, BatchSampler>
  AnySampler(std::shared_ptr<S> sampler) : batch_sampler_(std::move(sampler)) {}
  template <class S>
    requires(std::derived_from<S, Sampler> || std::derived_from<S, BatchSampler>)
  AnySampler(S sampler) : AnySampler(std::make_shared<S>(std::move(sampler))) {}

  const std::shared_ptr<Sampler>& sampler() const noexcept { return sampler_; }
  const std::shared_ptr<BatchSampler>& batch_sampler() const noexcept { return batch_sampler_; }

 private:
  std::shared_ptr<BatchSampler> batch_sampler_;
  std::shared_ptr<Sampler> sampler_;
};

/// Sample counts of the current batch and its step. A sample is real unless it is padding: a repeated sample that fills
/// up the step.
struct StepSamples {
  bool every_rank = true;  ///< whether every rank has a batch in the step
  int64_t local = 0;       ///< samples in this rank's batch
  int64_t local_real = 0;  ///< real samples in this rank's batch, which come first in it
  int64_t real = 0;        ///< real samples in the batches of all ranks, which come first in rank order
  int64_t left = 0;        ///< samples in later steps, in which this rank has no batch
  int64_t total = 0;       ///< samples in the batches of all ranks
};

/// The position of a loader: small, exact, and independent of world size and number of workers.
struct LoaderPosition {
  std::string dataset;  ///< the state of a stateful dataset
  int64_t epoch = 0;
  int64_t samples = 0;  ///< samples returned in the pass so far, on all ranks; with a batch sampler: batches
  uint64_t seed = 0;
  friend bool operator==(const LoaderPosition&, const LoaderPosition&) = default;
};

/// One pass over this rank's batches. Ending it ends its threads.
/// Thread safety: one thread at a time.
class Pass {
 public:
  virtual ~Pass() = default;
  /// The next batch, which stays valid until the next call; nullptr at the end.
  /// Throws: DatasetError; Error (MU105) if no batch came in time; UsageError (MU106) once another pass has begun.
  virtual BatchBox* next() = 0;
  /// The dataset indices of the samples in the current batch; for a stream, their positions in the pass. Empty before
  /// the first batch, after the last one, and where rank 0 reads for all ranks.
  virtual std::vector<int64_t> indices() const { return {}; }
};

/// The state that the copies of a DataLoader share. Thread safety: one thread at a time.
class LoaderState {
 public:
  /// Throws: ConfigError (MU107) for options that are invalid or contradict each other.
  LoaderState(std::shared_ptr<BatchMaker> maker, std::optional<AnySampler> sampler, const DataLoaderOptions& options,
              const SampleSplit* split = nullptr);
  ~LoaderState();

  /// Collective: if split.group is set.
  std::shared_ptr<LoaderState> distributed(const SampleSplit& split) const;
  std::unique_ptr<Pass> begin_pass();

  /// When the running or the last pass began.
  std::chrono::steady_clock::time_point began() const;
  int64_t batch_size() const;
  int64_t dataset_size() const;
  std::optional<int64_t> known_size() const;
  std::string describe() const;
  bool end_of_dataloader() const;
  void load_position(const LoaderPosition& saved);
  LoaderPosition save_position() const;
  int64_t epoch() const;
  const DataLoaderOptions& options() const;
  int64_t num_yielded() const;
  int rank() const;
  int64_t remainder() const;
  /// Whether a pass has begun and is neither complete nor stopped early.
  bool running() const;
  const StepSamples& samples() const;
  void seek(int64_t batch);
  void set_epoch(int64_t epoch);
  /// Replaces SampleSplit::even_batches from the next pass on.
  void set_even_batches(std::optional<bool> even);
  const SampleSplit& sample_split() const;
  int64_t size() const;
  /// Whether the data come from a stream.
  bool streams() const;
  int64_t total_batch_size() const;

 private:
  std::string describe_order() const;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::data
