#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/data/detail/batch_maker.h"
#include "muster/tree/detail/visit.h"

namespace muster {

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

template <class T>
inline constexpr bool is_batches = false;
template <class Batch>
inline constexpr bool is_batches<Batches<Batch>> = true;
template <class D>
concept ready_batches = is_batches<std::remove_const_t<D>>;

template <class Batch>
struct BatchOf<Batches<Batch>> {
  using type = Batch;
};
template <class Batch>
struct BatchOf<const Batches<Batch>> {
  using type = Batch;
};

/// Finds the number of samples in a batch.
struct RowCounter {
  std::optional<int64_t>& rows;
  void operator()(const at::Tensor& tensor) const {
    if (!rows && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  }
  template <tree::plain_list L>
  void operator()(L& list) const {
    if (!rows) rows = static_cast<int64_t>(list.size());
  }
};

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
      tree::visit(batch, RowCounter{rows});
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

template <class D, class Batch>
  requires ready_batches<D>
struct MakerOf<D, Batch> {
  using type = ReadyBatchMaker<Batch>;
};

}  // namespace data
}  // namespace muster
