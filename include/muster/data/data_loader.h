#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "muster/base/handle.h"
#include "muster/data/dataset.h"
#include "muster/data/detail/batch_maker.h"
#include "muster/data/detail/loader_state.h"
#include "muster/data/options.h"

namespace muster::data {

/// The iterator of a DataLoader. Owns its pass: destroying it (break, return, an exception) ends the pass and its
/// threads.
template <class Batch>
class BatchIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using iterator_concept = std::input_iterator_tag;

  BatchIterator() = default;
  explicit BatchIterator(std::unique_ptr<Pass> pass) : pass_(std::move(pass)) { ++*this; }

  Batch& operator*() const { return *batch_; }
  Batch* operator->() const { return batch_; }
  BatchIterator& operator++() {
    auto* box = pass_->next();
    batch_ = box ? &*static_cast<BatchBoxOf<Batch>*>(box)->batch : nullptr;
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const BatchIterator& it, std::default_sentinel_t) { return it.batch_ == nullptr; }

 private:
  Batch* batch_ = nullptr;
  std::unique_ptr<Pass> pass_;
};

}  // namespace muster::data

namespace muster {

using data::LoaderPosition;

/// This rank's batches of a map-style dataset or a stream, as a range: `for (auto& [image, label] : loader)`.
///
/// A copy is a handle to the same loader. The loader keeps its dataset: it copies a named object; std::move(), a
/// shared_ptr or std::ref() avoids the copy; see data/dataset.h, which lists, with
/// data/stream.h, the interfaces of datasets.
/// All workers share a dataset that is read through const members, so concurrent reads must be safe. Any other dataset
/// is copied for each worker, as in torch::data.
/// A batch belongs to the loader until the iterator advances. Then its memory is reused, except for tensors that are
/// still referenced elsewhere.
/// The order and the content of batches depend on (seed, epoch, index in that order) alone, never on workers; the
/// shuffle does not depend on the world size. Random LibTorch operators in a dataset draw numbers that depend on (seed,
/// epoch, sample) instead of using the default generator.
/// A complete pass advances the epoch. A pass that is stopped early does not: the next begin() repeats it from the
/// start, unless seek() sets another batch.
/// A default-constructed loader is empty until another loader is assigned to it.
/// Thread safety: one thread at a time; one pass at a time.
/// Throws: UsageError (MU322), from every function, if the loader is empty.
template <class Batch>
class DataLoader {
 public:
  /// The type of a batch.
  using batch_type = Batch;
  /// Goes over the batches of one pass.
  using iterator = data::BatchIterator<Batch>;

  /// An empty loader.
  DataLoader() = default;
  /// Whether the loader is not empty.
  explicit operator bool() const noexcept { return static_cast<bool>(state_); }
  /// The loader itself, so that loops written for torch::data::make_data_loader compile: for (auto& batch : *loader).
  DataLoader& operator*() noexcept { return *this; }
  /// The loader itself.
  const DataLoader& operator*() const noexcept { return *this; }
  /// The loader itself.
  DataLoader* operator->() noexcept { return this; }
  /// The loader itself.
  const DataLoader* operator->() const noexcept { return this; }

  /// Makes a loader over a dataset, which it keeps, or over the target of a shared_ptr. Throws: ConfigError (MU104,
  /// MU107) for a dataset without a size or for invalid options; (MU128) for a dataset that cannot be kept.
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  explicit DataLoader(D&& dataset, DataLoaderOptions options = {})
      : DataLoader(data::keep_dataset(std::forward<D>(dataset)), std::nullopt, options) {}

  /// Makes a loader that uses the order of a custom Sampler, or the batches of a custom BatchSampler.
  template <class D>
    requires std::same_as<batch_of_t<D>, Batch>
  DataLoader(D&& dataset, data::AnySampler sampler, DataLoaderOptions options = {})
      : DataLoader(data::keep_dataset(std::forward<D>(dataset)), std::optional(std::move(sampler)), options) {}

  /// Gives a one-line compile error if the loader's batch type is written out and is not that of the dataset.
  template <class D>
    requires(!std::same_as<batch_of_t<D>, Batch>)
  explicit DataLoader(D&&, DataLoaderOptions = {}) {
    static_assert(std::same_as<batch_of_t<D>, Batch>,
                  "muster::DataLoader: this dataset gives batches of another type; leave the type out: "
                  "muster::DataLoader loader(dataset, options)");
  }

  /// Makes a loader over a function that maps an index [and SampleRandom&] to a sample, or indices to a batch.
  template <class F>
    requires data::dataset_function<F> && std::same_as<batch_of_t<data::Function<F>>, Batch>
  DataLoader(F function, int64_t size, DataLoaderOptions options = {})
      : DataLoader(data::keep_dataset(data::Function<F>{std::move(function), size}), std::nullopt, options) {}
  /// A loader that shares this state.
  explicit DataLoader(std::shared_ptr<data::LoaderState> state) : state_(std::move(state)) {}

  /// Begins a pass; a pass that is still running ends.
  iterator begin() const { return iterator(state_->begin_pass()); }
  /// The end of a pass.
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Returns a new loader over this rank's part of the data, at this loader's epoch and position.
  /// Collective: if split.group is set; all ranks then use rank 0's seed.
  /// Throws: ConfigError (MU107) if split_batches cannot divide the batch size, (MU115) if the ranks' loaders differ.
  DataLoader distributed(const data::SampleSplit& split) const { return DataLoader(state_->distributed(split)); }

  /// The exact number of batches in a pass on this rank. Throws: UsageError (MU113) for a stream of unknown length.
  int64_t size() const { return state_->size(); }
  /// The exact number of batches in a pass on this rank; std::nullopt for a stream of unknown length.
  std::optional<int64_t> known_size() const { return state_->known_size(); }
  /// Samples in the data of all ranks. Throws: UsageError (MU113) for a stream of unknown length.
  int64_t dataset_size() const { return state_->dataset_size(); }
  /// Samples in a full batch of this rank; 0 with a batch sampler or ready-made batches.
  int64_t batch_size() const { return state_->batch_size(); }
  /// Samples in a full step of all ranks; 0 with a batch sampler or ready-made batches.
  int64_t total_batch_size() const { return state_->total_batch_size(); }

  /// The epoch of the current pass; between passes, of the next one.
  int64_t epoch() const { return state_->epoch(); }
  /// Sets the epoch of the next pass.
  void set_epoch(int64_t epoch) { state_->set_epoch(epoch); }
  /// Batches returned in the current pass, or in the last one if it was stopped early, including the current batch; 0
  /// after a complete pass.
  int64_t num_yielded() const { return state_->num_yielded(); }
  /// Makes the next pass begin at this batch. Built-in samplers seek in constant time; a custom sampler seeks or steps
  /// there. Map-style data before the batch is not read; a stream skips samples.
  /// Throws: UsageError (MU108) for a batch beyond size().
  void seek(int64_t batch) { state_->seek(batch); }
  /// The position of the loader: after the current batch.
  LoaderPosition save_position() const { return state_->save_position(); }
  /// Makes the next pass resume at this position, with any number of workers. A stream that is not stateful skips all
  /// samples before it. Throws: UsageError (MU114) for a position below 0.
  void load_position(const LoaderPosition& saved) { state_->load_position(saved); }

  /// Whether the current batch is the last one of this rank.
  bool end_of_dataloader() const { return state_->end_of_dataloader(); }
  /// Samples in a pass modulo total_batch_size(): samples in an incomplete last step; -1 if it is dropped or unknown,
  /// or with a batch sampler or ready-made batches.
  int64_t remainder() const { return state_->remainder(); }
  /// Samples in this rank's current batch, including padding (repeated samples).
  int64_t local_samples() const { return state_->samples().local; }
  /// Samples in this rank's current batch, without padding; padding comes last.
  int64_t local_real_samples() const { return state_->samples().local_real; }
  /// Samples in the current step over all ranks, without padding; padding comes last in rank order.
  int64_t real_samples() const { return state_->samples().real; }

  /// The options with which the loader was made.
  const DataLoaderOptions& options() const { return state_->options(); }
  /// How the data are split over ranks, and which part this loader returns.
  const data::SampleSplit& sample_split() const { return state_->sample_split(); }
  /// One line: order, sizes, world size, workers, device.
  std::string describe() const { return state_->describe(); }
  /// The state that all copies of this loader share.
  const std::shared_ptr<data::LoaderState>& state() const { return state_.pointer(); }

 private:
  template <class D>
  DataLoader(std::shared_ptr<D> dataset, std::optional<data::AnySampler> sampler, const DataLoaderOptions& options)
      : state_(std::make_shared<data::LoaderState>(maker_of(std::move(dataset)), std::move(sampler), options)) {}

  template <class D>
  static std::shared_ptr<data::BatchMaker> maker_of(std::shared_ptr<D> dataset) {
    data::require_dataset(dataset.get());
    return std::make_shared<typename data::MakerOf<D, Batch>::type>(std::move(dataset));
  }

  Shared<HandleType::data_loader, data::LoaderState> state_;
};

template <class D>
DataLoader(D&&, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class D>
DataLoader(D&&, data::AnySampler, DataLoaderOptions = {}) -> DataLoader<batch_of_t<D>>;
template <class F>
  requires data::dataset_function<F>
DataLoader(F, int64_t, DataLoaderOptions = {}) -> DataLoader<batch_of_t<data::Function<F>>>;

/// Returns the loader, whose next pass (only that one) begins at this batch: in constant time, or as fast as a stream
/// skips.
/// Throws: UsageError (MU108) for a batch beyond its end.
template <class Batch>
DataLoader<Batch> skip_first_batches(DataLoader<Batch> loader, int64_t batches) {
  loader.seek(batches);
  return loader;
}

template <class T>
inline constexpr bool is_data_loader = false;
template <class Batch>
inline constexpr bool is_data_loader<DataLoader<Batch>> = true;

namespace data {
/// Takes the place of the batch type if the argument is not a dataset.
template <class D>
struct NoDataset {};
template <class D>
concept no_dataset = !requires { typename batch_of_t<D>; };
}  // namespace data

/// Gives a one-line compile error for an argument that is not a dataset.
template <class D>
class DataLoader<data::NoDataset<D>> {
  static_assert(!std::same_as<D, D>,
                "muster::DataLoader takes a dataset, which this is not: a class with size() and get(index) or "
                "get_batch(indices), a range with operator[], "
                "a torch::data dataset, a function with the number of its samples, or a stream with next() "
                "and #include <muster/data/stream.h>; see muster/data/dataset.h and muster/data/stream.h");

 public:
  /// Does not compile.
  template <class A>
  explicit DataLoader(A&&, DataLoaderOptions = {}) {}
  /// Does not compile.
  template <class A>
  DataLoader(A&&, const data::AnySampler&, DataLoaderOptions = {}) {}
  /// Does not compile.
  template <class A>
  DataLoader(A&&, int64_t, DataLoaderOptions = {}) {}
};

template <class D>
  requires data::no_dataset<D> && (!is_data_loader<std::remove_cvref_t<D>>)
DataLoader(D&&, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<std::remove_cvref_t<D>>>;
template <class D>
  requires data::no_dataset<D>
DataLoader(D&&, data::AnySampler, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<std::remove_cvref_t<D>>>;
template <class F>
  requires data::no_dataset<F> && (!data::dataset_function<F>)
DataLoader(F, int64_t, DataLoaderOptions = {}) -> DataLoader<data::NoDataset<F>>;

}  // namespace muster
