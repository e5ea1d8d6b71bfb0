#pragma once

#include "muster/data/loader_state.h"
#include "muster/data/no_dataset.h"
#include "muster/data/stream_maker.h"

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace muster {

using data::LoaderPosition;
using data::ShardSpec;

/// This rank's batches of a map-style dataset or a stream, as a range: `for (auto& [image, label] : loader)`.
///
/// A copy is a handle to the same loader. Datasets are kept: of one with a name a copy is taken, and std::move(), a shared_ptr or
/// std::ref() takes none; see data/kept_dataset.h. See data/dataset.h and data/stream.h for what counts as a dataset. A dataset that
/// is read through const members is shared by all workers and must allow that; of any other each worker has a copy, as in torch::data.
/// A batch belongs to the loader until the iterator moves on; then its memory is used again unless somebody still holds one of its
/// tensors.
/// The order and the content of batches depend on (seed, epoch, position) alone: never on workers, and the shuffle never on the
/// world size. Random operators of LibTorch in a dataset draw numbers that depend on (seed, epoch, sample), not the default generator's.
/// A pass that ran to its end advances the epoch; a broken-off pass does not, so the next begin() runs it again from its
/// start, unless seek() says otherwise.
/// Thread safety: one thread at a time; one pass at a time.
template <class Batch>
class DataLoader {
 public:
  using batch_type = Batch;
  class iterator;

  /// Throws: ConfigError (MU104, MU107) for a dataset without size or options that make no sense; (MU128) for one that cannot be kept.
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  explicit DataLoader(D&& dataset, DataLoaderOptions options = {}) : DataLoader(data::keep_dataset(std::forward<D>(dataset)), std::nullopt, options) {}
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  explicit DataLoader(std::shared_ptr<D> dataset, DataLoaderOptions options = {}) : DataLoader(std::move(dataset), std::nullopt, options) {}

  /// In the order of a sampler or in the batches of a batch sampler of the user's own: class Sampler, class BatchSampler.
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  DataLoader(D&& dataset, data::AnySampler sampler, DataLoaderOptions options = {})
      : DataLoader(data::keep_dataset(std::forward<D>(dataset)), std::optional(std::move(sampler)), options) {}
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  DataLoader(std::shared_ptr<D> dataset, data::AnySampler sampler, DataLoaderOptions options = {})
      : DataLoader(std::move(dataset), std::optional(std::move(sampler)), options) {}

  /// So that the compiler says one line where the loader's type was written out, and is not that of the dataset.
  template <class D>
    requires(!std::same_as<batch_of_t<D>, Batch>)
  explicit DataLoader(D&&, DataLoaderOptions = {}) {
    static_assert(std::same_as<batch_of_t<D>, Batch>,
                  "muster::DataLoader: this dataset gives batches of another type; leave the type out: muster::DataLoader loader(dataset, options)");
  }

  /// Over a function from an index [and SampleRandom&] to a sample, or from indices to a batch.
  template <class F>
    requires data::dataset_function<F> && std::same_as<batch_of_t<data::Function<F>>, Batch>
  DataLoader(F function, int64_t size, DataLoaderOptions options = {})
      : DataLoader(data::keep_dataset(data::Function<F>{std::move(function), size}), std::nullopt, options) {}

  /// Begins a pass; one that is still running ends.
  iterator begin() const { return iterator(state_->begin_pass()); }
  std::default_sentinel_t end() const noexcept { return {}; }

  /// The same data as this rank's part of a job: a loader of its own, at the same epoch and position.
  /// Collective: where shard.group is set; rank 0's seed then counts.
  /// Throws: ConfigError (MU107) if split_batches cannot cut the batch size, (MU115) if ranks' loaders differ.
  DataLoader distributed(const ShardSpec& shard) const { return DataLoader(state_->distributed(shard)); }

  /// Batches of a whole pass on this rank, exactly. Throws: UsageError (MU113) for a stream of unknown length.
  int64_t size() const { return state_->size(); }
  /// The same, or nothing for a stream of unknown length.
  std::optional<int64_t> known_size() const { return state_->known_size(); }
  /// Throws: UsageError (MU113) for a stream of unknown length.
  int64_t dataset_size() const { return state_->dataset_size(); }
  /// Samples in a full batch of this rank; 0 with a batch sampler.
  int64_t batch_size() const { return state_->batch_size(); }
  /// Samples in a full step of all ranks; 0 with a batch sampler.
  int64_t total_batch_size() const { return state_->total_batch_size(); }

  int64_t epoch() const { return state_->epoch(); }
  /// The epoch of the next pass.
  void set_epoch(int64_t epoch) { state_->set_epoch(epoch); }
  /// Batches that were handed out in the running or the last broken-off pass, the one in hand included; 0 after a complete pass.
  int64_t position() const { return state_->position(); }
  /// The next pass begins at this batch: in constant time with built-in samplers; a user's sampler seeks or steps; data is not read.
  /// Throws: UsageError (MU108) for a batch beyond size().
  void seek(int64_t batch) { state_->seek(batch); }
  /// Where the loader stands: after the batch in hand.
  LoaderPosition save_position() const { return state_->save_position(); }
  /// The next pass goes on there, whatever the number of workers; a stream that is not stateful is read and left out up to there.
  /// Throws: UsageError (MU114) if no step of this world size begins there.
  void load_position(const LoaderPosition& saved) { state_->load_position(saved); }

  /// The batch in the user's hands is the last one of this rank.
  bool end_of_dataloader() const { return state_->end_of_dataloader(); }
  /// dataset_size() modulo total_batch_size(): samples in an incomplete last step; -1 if it is dropped or unknown.
  int64_t remainder() const { return state_->remainder(); }
  /// Samples of this rank's batch in hand, repeated ones included.
  int64_t local_samples() const { return state_->samples().local; }
  /// Samples of this rank's batch in hand, padding not counted; padding comes last.
  int64_t local_real_samples() const { return state_->samples().local_real; }
  /// Samples of the step in hand over all ranks, padding not counted; padding comes last in rank order.
  int64_t real_samples() const { return state_->samples().real; }

  const DataLoaderOptions& options() const { return state_->options(); }
  const ShardSpec& shard() const { return state_->shard(); }
  /// One line: order, sizes, workers, place in the job.
  std::string describe() const { return state_->describe(); }
  /// What the copies of this loader share.
  const std::shared_ptr<data::LoaderState>& state() const noexcept { return state_; }

 private:
  explicit DataLoader(std::shared_ptr<data::LoaderState> state) : state_(std::move(state)) {}
  template <class D>
  DataLoader(std::shared_ptr<D> dataset, std::optional<data::AnySampler> sampler, const DataLoaderOptions& options)
      : state_(std::make_shared<data::LoaderState>(maker_of(std::move(dataset)), std::move(sampler), options)) {}

  template <class D>
  static std::shared_ptr<data::BatchMaker> maker_of(std::shared_ptr<D> dataset) {
    data::require_dataset(dataset.get());
    if constexpr (data::map_dataset<D>) return std::make_shared<data::DatasetBatchMaker<D, Batch>>(std::move(dataset));
    else return std::make_shared<data::StreamBatchMaker<D, Batch>>(std::move(dataset));
  }

  std::shared_ptr<data::LoaderState> state_;
};

/// Owns its pass: destroying it (break, return, an exception) ends the pass and its threads.
template <class Batch>
class DataLoader<Batch>::iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  iterator() = default;
  explicit iterator(std::unique_ptr<data::Pass> pass) : pass_(std::move(pass)) { ++*this; }
  iterator(iterator&&) noexcept = default;
  iterator& operator=(iterator&&) noexcept = default;

  Batch& operator*() const { return *batch_; }
  Batch* operator->() const { return batch_; }
  iterator& operator++() {
    auto* box = pass_->next();
    batch_ = box ? &*static_cast<data::BatchBoxOf<Batch>*>(box)->batch : nullptr;
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const iterator& it, std::default_sentinel_t) { return it.batch_ == nullptr; }

 private:
  Batch* batch_ = nullptr;
  std::unique_ptr<data::Pass> pass_;
};

template <class D>
DataLoader(D&&, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class D>
DataLoader(std::shared_ptr<D>, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class D>
DataLoader(D&&, data::AnySampler, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class D>
DataLoader(std::shared_ptr<D>, data::AnySampler, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class F>
  requires data::dataset_function<F>
DataLoader(F, int64_t, DataLoaderOptions = {}) -> DataLoader<batch_of_t<data::Function<F>>>;

/// The loader, to begin at this batch in its next pass only: in constant time, or as fast as a stream skips.
/// Throws: UsageError (MU108) for a batch beyond its end.
template <class Batch>
DataLoader<Batch> skip_first_batches(DataLoader<Batch> loader, int64_t batches) {
  loader.seek(batches);
  return loader;
}

}  // namespace muster
