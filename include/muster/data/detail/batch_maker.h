#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "muster/data/dataset.h"
#include "muster/tree/detail/pack.h"
#include "muster/tree/detail/visit.h"

namespace muster::data {

/// One batch, type-erased.
class BatchBox {
 public:
  virtual ~BatchBox() = default;
  virtual void visit(const std::function<void(at::Tensor&)>& f) = 0;
  /// Serialises the batch for another rank (pack) and restores it (unpack). Throws: UsageError (MU111, MU112).
  virtual at::Tensor pack() const = 0;
  virtual void unpack(const at::Tensor& packed) = 0;

 protected:
  [[noreturn]] static void refuse_sending();  ///< throws UsageError (MU112)
};

template <class Batch>
class BatchBoxOf final : public BatchBox {
 public:
  void visit(const std::function<void(at::Tensor&)>& f) override {
    if (batch) tree::visit(*batch, f);
  }
  at::Tensor pack() const override {
    if constexpr (tree::sendable<Batch>) return tree::pack(*batch);
    else refuse_sending();
  }
  void unpack(const at::Tensor& packed) override {
    if constexpr (tree::sendable<Batch> && std::default_initializable<Batch>)
      batch.emplace(tree::unpack<Batch>(packed));
    else refuse_sending();
  }
  std::optional<Batch> batch;
};

/// Samples read from a stream but not yet transformed, type-erased.
class Records {
 public:
  virtual ~Records() = default;
  /// Appends a copy of sample i of `from`, which has the same type.
  virtual void append(const Records& from, int64_t i) = 0;
};

/// Reads a stream, type-erased. Thread safety: one thread at a time.
class StreamReader {
 public:
  virtual ~StreamReader() = default;
  virtual std::unique_ptr<Records> new_records() const = 0;
  /// The number of samples in a pass, if the stream reports it.
  virtual std::optional<int64_t> size() const = 0;
  virtual void start(int64_t epoch) = 0;
  /// Appends the next sample; returns false at the end.
  virtual bool read(Records& to) = 0;
  /// Skips up to n samples; returns how many it skipped.
  virtual int64_t skip(int64_t n) = 0;
};

/// A request for one batch.
struct BatchRequest {
  Indices indices;  ///< indices of the samples; for a stream: their positions in the pass
  bool pinned = false;
  EpochRandom random;
  const Records* records = nullptr;         ///< raw samples read from a stream, one per index
  const std::atomic<bool>* stop = nullptr;  ///< checked between samples
};

class ReadyBatchEnds;

/// Makes batches from a dataset, type-erased. Thread safety: one thread at a time.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  virtual int64_t size() const = 0;
  virtual std::unique_ptr<BatchBox> new_box() const = 0;
  /// Fills the box, reusing its memory. Returns false if `stop` was set. Throws: DatasetError.
  virtual bool make(const BatchRequest& request, BatchBox& box) = 0;
  /// Creates a maker for another thread. It shares a dataset that is read through const members, and copies any other
  /// dataset.
  /// Throws: UsageError (MU103) if the dataset must not be shared and cannot be copied.
  virtual std::shared_ptr<BatchMaker> for_worker() = 0;
  /// The reader of a stream; nullptr for a map-style dataset.
  virtual std::shared_ptr<StreamReader> stream() const { return nullptr; }
  /// The ends of ready-made batches; nullptr for any other data.
  virtual const ReadyBatchEnds* ready_batches() const { return nullptr; }
  /// The state of a stateful dataset; empty for any other dataset.
  virtual std::string state() const { return {}; }
  virtual void load_state(const std::string&) {}
};

/// Wraps the current exception. Throws: DatasetError, always.
[[noreturn]] void throw_dataset_error(int64_t index, bool whole_batch);
[[noreturn]] void refuse_sharing();  ///< throws UsageError (MU103)
/// Returns the size of a dataset. Throws: ConfigError (MU104) if it is unknown.
int64_t known_size(std::optional<size_t> size);

/// Whether D is read only through const members: a const D returns data by the same members as a non-const D.
template <class D, class Batch>
consteval bool shareable() {
  using C = const D;
  if constexpr (std::is_const_v<D>) return true;
  else if constexpr (in_place_dataset<D>)
    return requires(C& d, Batch& b) { d.get_batch(Indices(), b); } ||
           requires(C& d, Batch& b, const EpochRandom& r) { d.get_batch(Indices(), b, r); };
  else if constexpr (requires { typename BatchOf<C>::type; })
    return fetch_kind<C>() == fetch_kind<D>() && random_sample_dataset<C> == random_sample_dataset<D>;
  else return false;
}

/// Makes a batch of `count` samples, of which `sample_at(i, index)` returns sample i. Returns false if `stop` was set.
/// Throws: DatasetError.
template <class Batch, class SampleAt>
bool collate_samples(const BatchRequest& request, std::size_t count, std::optional<Batch>& batch, SampleAt sample_at) {
  tree::StackPlace place{.count = static_cast<int64_t>(count), .pinned = request.pinned};
  for (; place.index < place.count; ++place.index) {
    if (request.stop && request.stop->load(std::memory_order_relaxed)) return false;
    const int64_t index = request.indices[place.index];
    try {
      request.random.seed_operators(index);
      decltype(auto) sample = sample_at(place.index, index);
      using Sample = std::remove_cvref_t<decltype(sample)>;
      if constexpr (std::is_default_constructible_v<Batch>) {
        if (!batch) batch.emplace();
      } else if (!batch) {
        batch.emplace(sample);
      }
      tree::collate_into<Sample>(*batch, sample, place);
    } catch (...) {
      throw_dataset_error(index, false);
    }
  }
  return true;
}

template <class D, class Batch>
class DatasetBatchMaker final : public BatchMaker {
 public:
  explicit DatasetBatchMaker(std::shared_ptr<D> dataset) : dataset_(std::move(dataset)) {}

  int64_t size() const override { return known_size(dataset_->size()); }
  std::unique_ptr<BatchBox> new_box() const override { return std::make_unique<BatchBoxOf<Batch>>(); }

  bool make(const BatchRequest& request, BatchBox& box) override {
    auto& batch = static_cast<BatchBoxOf<Batch>&>(box).batch;
    if constexpr (fetch_kind<D>() == FetchKind::sample) {
      return collate_samples(request, request.indices.size(), batch, [&](int64_t, int64_t index) -> decltype(auto) {
        return sample_of(static_cast<Access&>(*dataset_), index, request.random);
      });
    } else {
      try {
        request.random.seed_operators(request.indices.empty() ? 0 : request.indices.front());
        make_whole(request, batch);
      } catch (...) {
        throw_dataset_error(request.indices.empty() ? 0 : request.indices.front(), true);
      }
      return true;
    }
  }

  std::shared_ptr<BatchMaker> for_worker() override {
    if constexpr (shareable<D, Batch>()) return std::make_shared<DatasetBatchMaker>(dataset_);
    else if constexpr (std::copy_constructible<D>)
      return std::make_shared<DatasetBatchMaker>(std::make_shared<D>(*dataset_));
    else refuse_sharing();
  }

  std::string state() const override {
    if constexpr (requires(D& d, const std::string& s) { d.load_state(s), std::string(d.state()); })
      return dataset_->state();
    else return {};
  }
  void load_state(const std::string& saved) override {
    if constexpr (requires { dataset_->load_state(saved); }) dataset_->load_state(saved);
  }

 private:
  using Access = std::conditional_t<shareable<D, Batch>(), const D, D>;

  void make_whole(const BatchRequest& request, std::optional<Batch>& batch) {
    auto& dataset = static_cast<Access&>(*dataset_);
    if constexpr (fetch_kind<D>() == FetchKind::in_place) {
      if (!batch) batch.emplace();
      if constexpr (requires { dataset.get_batch(request.indices, *batch, request.random); })
        dataset.get_batch(request.indices, *batch, request.random);
      else dataset.get_batch(request.indices, *batch);
    } else if constexpr (fetch_kind<D>() == FetchKind::batch) {
      batch.emplace(detail::call_get_batch(dataset, request.indices));
    } else if constexpr (fetch_kind<D>() == FetchKind::sample_list) {
      batch.emplace(tree::collate(detail::call_get_batch(dataset, request.indices)));
    }
  }

  std::shared_ptr<D> dataset_;
};

/// The BatchMaker for data of type D; specialised for streams and ready-made batches.
template <class D, class Batch>
struct MakerOf : std::type_identity<DatasetBatchMaker<D, Batch>> {};

}  // namespace muster::data
